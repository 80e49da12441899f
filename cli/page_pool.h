// The pages of a paged cache: which are free and which are in use. Freed pages are handed out before fresh ones, so that reuse,
// and with it any mistake about who owns a page, happens early.
#pragma once

#include <cstdint>
#include <vector>

namespace mlaverify::cli {

class PagePool {
 public:
  // Pages 0 ... num_pages-1, all free.
  explicit PagePool(int32_t num_pages) : capacity_(num_pages) {}

  // A page that nobody owns. Throws std::logic_error if there is none: callers reserve before they allocate.
  int32_t allocate();

  // Throws std::logic_error for a page that is not in use: a double free, or one that the pool does not have.
  void free(int32_t page);

  int32_t capacity() const { return capacity_; }
  int32_t in_use() const { return peak() - static_cast<int32_t>(freed_.size()); }
  // Most pages ever in use at once; since freed pages go out first, also the number of distinct pages ever used.
  int32_t peak() const { return static_cast<int32_t>(owned_.size()); }
  int64_t allocations() const { return allocations_; }  // calls of allocate(): those beyond peak() reused a page

 private:
  int32_t capacity_;
  std::vector<bool> owned_;     // of the pages handed out so far
  std::vector<int32_t> freed_;  // a stack
  int64_t allocations_ = 0;
};

}  // namespace mlaverify::cli
