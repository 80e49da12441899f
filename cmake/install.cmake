# cmake --install: the library that mlaverify::mlaverify is, its headers, the program, and how CMake and pkg-config find them. What is
# installed can be moved.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

if(BUILD_SHARED_LIBS)
  set(mlaverify_installed mlaverify_shared)
else()
  set(mlaverify_installed mlaverify)
endif()
set_target_properties(${mlaverify_installed} PROPERTIES EXPORT_NAME mlaverify)
install(TARGETS ${mlaverify_installed} EXPORT mlaverify INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/mlaverify DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(MLAVERIFY_CLI)
  install(TARGETS mlaverify_program)
endif()

set(mlaverify_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mlaverify)
install(EXPORT mlaverify NAMESPACE mlaverify:: FILE mlaverifyTargets.cmake DESTINATION ${mlaverify_cmake_dir})
get_target_property(mlaverify_links mlaverify LINK_LIBRARIES)
set(MLAVERIFY_NEEDS_OPENMP OFF)
set(MLAVERIFY_NEEDS_CUDA OFF)
if(NOT BUILD_SHARED_LIBS)  # a shared library brings what it needs
  if("OpenMP::OpenMP_CXX" IN_LIST mlaverify_links)
    set(MLAVERIFY_NEEDS_OPENMP ON)
  endif()
  set(MLAVERIFY_NEEDS_CUDA ${MLAVERIFY_WITH_CUDA})
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/mlaverifyConfig.cmake.in ${PROJECT_BINARY_DIR}/mlaverifyConfig.cmake
                              INSTALL_DESTINATION ${mlaverify_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mlaverifyConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/mlaverifyConfig.cmake ${PROJECT_BINARY_DIR}/mlaverifyConfigVersion.cmake
        DESTINATION ${mlaverify_cmake_dir})

# pkg-config: what a static library needs besides itself.
set(MLAVERIFY_PC_LIBS "")
if(NOT BUILD_SHARED_LIBS)
  set(MLAVERIFY_PC_LIBS " -lstdc++ -lm")
  if(MLAVERIFY_NEEDS_OPENMP)
    string(APPEND MLAVERIFY_PC_LIBS " ${OpenMP_CXX_FLAGS}")
  endif()
  if(MLAVERIFY_NEEDS_CUDA)
    string(APPEND MLAVERIFY_PC_LIBS " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt -lpthread")
  endif()
endif()
file(RELATIVE_PATH MLAVERIFY_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${CMAKE_CURRENT_LIST_DIR}/mlaverify.pc.in ${PROJECT_BINARY_DIR}/mlaverify.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/mlaverify.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
