#include "page_pool.h"

#include <fmt/format.h>

#include <stdexcept>

namespace mlaverify::cli {

int32_t PagePool::allocate() {
  int32_t page = peak();
  if (!freed_.empty()) {
    page = freed_.back();
    freed_.pop_back();
    owned_[static_cast<std::size_t>(page)] = true;
  } else if (page < capacity_) {
    owned_.push_back(true);
  } else {
    throw std::logic_error(fmt::format("page pool: all {} pages are in use", capacity_));
  }
  ++allocations_;
  return page;
}

void PagePool::free(int32_t page) {
  if (page < 0 || page >= peak() || !owned_[static_cast<std::size_t>(page)]) {
    throw std::logic_error(fmt::format("page pool: page {} is freed but not in use", page));
  }
  owned_[static_cast<std::size_t>(page)] = false;
  freed_.push_back(page);
}

}  // namespace mlaverify::cli
