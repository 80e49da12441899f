# A Python 3 that can import NumPy: the tests' case generator and oracle need it. The first python3 in the PATH may be one
# without NumPy, so the system's is tried first. Sets MLAVERIFY_PYTHON, which may also be given: -DMLAVERIFY_PYTHON=/path/to/python3.
if(NOT MLAVERIFY_PYTHON)
  find_program(PythonWithNumpy_PATH python3 NO_CACHE)
  foreach(candidate /usr/bin/python3 ${PythonWithNumpy_PATH})
    execute_process(COMMAND ${candidate} -c "import sys, numpy; sys.exit(sys.version_info < (3, 9))"
                    RESULT_VARIABLE PythonWithNumpy_RESULT OUTPUT_QUIET ERROR_QUIET)
    if(PythonWithNumpy_RESULT EQUAL 0)
      set(MLAVERIFY_PYTHON ${candidate} CACHE FILEPATH "Python 3.9 or newer with NumPy, for the tests")
      break()
    endif()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PythonWithNumpy REQUIRED_VARS MLAVERIFY_PYTHON
  REASON_FAILURE_MESSAGE "no python3 (3.9 or newer) can import numpy (on Debian, the package python3-numpy)")
