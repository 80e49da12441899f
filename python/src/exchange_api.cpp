#include "exchange_api.h"

namespace mlaverify_python {
namespace {

namespace nb = nanobind;

const ExchangeApi *usable(ExchangeApi::Header *header) {
  while (header != nullptr && header->major != 1) header = header->previous;
  const auto *api = reinterpret_cast<const ExchangeApi *>(header);  // the header is the first member
  return api != nullptr && api->dltensor_from_py_object_no_sync != nullptr ? api : nullptr;
}

const ExchangeApi *find(nb::handle type) {
  const nb::object attributes = nb::getattr(type, "__dict__", nb::none());
  if (attributes.is_none() || !attributes.attr("__contains__")("__dlpack_c_exchange_api__").equal(nb::bool_(true)))
    return nullptr;
  const nb::object capsule = attributes["__dlpack_c_exchange_api__"];
  constexpr const char *kName = "dlpack_exchange_api";
  if (PyCapsule_IsValid(capsule.ptr(), kName) == 0) return nullptr;
  return usable(static_cast<ExchangeApi::Header *>(PyCapsule_GetPointer(capsule.ptr(), kName)));
}

struct Known {
  nb::handle type;  // held for good, so that no other class gets its address
  const ExchangeApi *api;
};

}  // namespace

const ExchangeApi *exchange_api(nb::handle array) {
  constexpr int kMost = 16;  // classes beyond these are looked at anew each time
  static Known known[kMost];
  static int count = 0;
  const nb::handle type = array.type();
  for (int i = 0; i < count; ++i) {
    if (known[i].type.is(type)) return known[i].api;
  }
  const ExchangeApi *api = find(type);
  if (count < kMost) known[count++] = {type.inc_ref(), api};
  return api;
}

}  // namespace mlaverify_python
