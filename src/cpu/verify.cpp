// Schedule: the work is a line of (request, row tile, chunk of keys), cut in one contiguous share a thread.
//   1. Each thread walks its share; the chunks of a row tile are merged along the fixed tree as they come. A row tile that lies
//      wholly in one share is finished there. Of the others, a share can hold the last chunks of one (it began in an earlier
//      share) and the first chunks of one (it ends in a later share): their partial results wait in the thread's two lists.
//   2. When all shares are done, the thread that has the first chunks of a cut row tile merges all of it in key order.
#include "cpu/verify.h"

#include "cpu/merge_stack.h"
#include "cpu/shares.h"

namespace mlaverify::cpu {
namespace {

// A thread's region of the workspace.
class Region {
 public:
  Region(void *workspace, const rules::CpuThreadLayout &layout, int32_t thread)
      : layout_(layout), base_(static_cast<float *>(workspace) + thread * layout.size) {}

  Scratch scratch() const {
    return {base_ + layout_.q,          base_ + layout_.q_norms, base_ + layout_.kv,    base_ + layout_.squares,
            base_ + layout_.key_scores, base_ + layout_.scores,  base_ + layout_.values};
  }

  // Of a row tile: chunks from the first on (`begins_here`), or what follows an earlier share.
  Node node(bool begins_here, int32_t i) const {
    float *n = base_ + layout_.nodes + ((begins_here ? layout_.nodes_per_list : 0) + i) * layout_.node.size;
    return {n + layout_.node.max, n + layout_.node.sum, n + layout_.node.acc};
  }

 private:
  const rules::CpuThreadLayout &layout_;
  float *base_;
};

class Verify {
 public:
  Verify(const Isa &isa, const Problem &p, const Threads &threads, void *workspace)
      : isa_(isa),
        p_(p),
        layout_(rules::cpu_thread_layout(p)),
        work_(p),
        threads_(threads),
        shares_(work_.num_shares(threads.now())),
        workspace_(workspace) {}

  void run() const {
    threads_.in_parallel(shares_, [this](int32_t share) { walk(share); });
    if (shares_ > 1) threads_.in_parallel(shares_, [this](int32_t share) { join(share); });
  }

 private:
  // The chunks of row tile `tile` that belong to a share which begins and ends there.
  struct ChunkRange {
    int64_t begin, end;
  };
  ChunkRange chunks_of(int64_t tile, int64_t total, Position begin, Position end) const {
    return {begin.tile == tile  ? begin.chunk
            : begin.tile > tile ? total
                                : 0,
            end.tile == tile  ? end.chunk
            : end.tile > tile ? total
                              : 0};
  }

  void walk(int32_t share) const {
    const Position begin = work_.begin_of(share, shares_), end = work_.begin_of(share + 1, shares_);
    const Region region(workspace_, layout_, share);
    for (int64_t t = begin.tile; t < end.tile || (t == end.tile && end.chunk > 0); ++t) {
      const RowTile tile = work_.tile(t);
      const int64_t total = Work::chunks(tile);
      const ChunkRange range = chunks_of(t, total, begin, end);
      if (total == 0) {
        isa_.finish(p_, layout_, tile, Node{});
        continue;
      }
      if (range.begin >= range.end) continue;
      isa_.load_queries(p_, layout_, tile, region.scratch());
      MergeStack stack(isa_, p_, layout_, tile.rows);
      for (int64_t c = range.begin; c < range.end; ++c) {
        const Node node = region.node(range.begin == 0, stack.size());
        isa_.chunk(p_, layout_, tile, Work::chunk(tile, c), region.scratch(), node);
        stack.push({c, 0}, node);
      }
      if (range.begin == 0 && range.end == total) isa_.finish(p_, layout_, tile, stack.merge_all());
    }
  }

  void join(int32_t share) const {
    const Position end = work_.begin_of(share + 1, shares_);
    if (end.chunk == 0) return;  // no row tile is cut here
    const RowTile tile = work_.tile(end.tile);
    const int64_t total = Work::chunks(tile);
    if (work_.begin_of(share, shares_).tile == end.tile && work_.begin_of(share, shares_).chunk > 0)
      return;  // it began earlier
    MergeStack stack(isa_, p_, layout_, tile.rows);
    for (int32_t s = share; s < shares_; ++s) {
      const ChunkRange range = chunks_of(end.tile, total, work_.begin_of(s, shares_), work_.begin_of(s + 1, shares_));
      const Region region(workspace_, layout_, s);
      int32_t i = 0;
      for (int64_t c = range.begin; c < range.end;) {
        const rules::TreeNode node = rules::largest_node(c, range.end);
        stack.push(node, region.node(range.begin == 0, i++));
        c += int64_t{1} << node.level;
      }
      if (range.end == total) break;
    }
    isa_.finish(p_, layout_, tile, stack.merge_all());
  }

  const Isa &isa_;
  const Problem &p_;
  const rules::CpuThreadLayout layout_;
  const Work work_;
  const Threads &threads_;
  const int32_t shares_;
  void *workspace_;
};

}  // namespace

void verify(const Isa &isa, const Problem &p, const Threads &threads, void *workspace) {
  Verify(isa, p, threads, workspace).run();
}

}  // namespace mlaverify::cpu
