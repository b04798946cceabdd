// A run of rows tile by tile with an online softmax. All kv heads of a tile come before the next tile, so that blocks
// are read from front to back; each key and value is fetched once for all rows that see it.
#include "kernels/cpu/avx512/attention.h"

#include "kernels/check.h"

#if !defined(__x86_64__)

namespace kvmesh::avx512 {

bool Supported() { return false; }

void AttendRows(const AttentionCall&, const AttentionRows&, KeyRange, RowStates) {
  Require(false, "not built for this processor");
}

}  // namespace kvmesh::avx512

#else

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "kernels/cpu/avx512/math-inl.h"
#include "kernels/cpu/avx512/score-inl.h"
#include "kernels/cpu/avx512/scratch.h"
#include "kernels/cpu/avx512/target.h"
#include "kernels/cpu/avx512/value-inl.h"
#include "kernels/cpu/avx512/weigh-inl.h"
#include "kernels/cpu/kernels.h"
#include "kernels/stored_rows.h"

namespace kvmesh::avx512 {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr int kFewRows = 8;

// A call, with what follows from it.
struct Shape {
  const AttentionCall& call;
  const AttentionRows& rows;
  Stored stored;  // as the loops read rows
  int32_t group;
  int head_dim;
  int columns;     // vectors of a row as the loops read it
  float in_scale;  // multiplies the query: scores come out in log2 units, or, with a soft cap, in units of the cap
  float log2_cap;  // soft cap in log2 units; 0: none
};

// How the loops read rows of this layout; nullopt: they don't.
std::optional<Stored> StoredOf(const BlockLayout& layout) {
  const auto whole = [&](Stored stored) { return layout.head_dim % (16 * PerWord(stored)) == 0; };
  if (layout.format == KvFormat::kF32 && whole(Stored::kF32)) return Stored::kF32;
  if (layout.format == KvFormat::kBf16 && whole(Stored::kBf16)) return Stored::kBf16;
  if (layout.format == KvFormat::kInt8 && whole(Stored::kInt8) && layout.scale_groups() == 1) return Stored::kInt8;
  return std::nullopt;
}

Shape ShapeOf(const AttentionCall& call, const AttentionRows& rows, Stored stored) {
  const int head_dim = call.pool.layout.head_dim;
  const float scale = call.params.scale, cap = call.params.soft_cap;
  return {.call = call,
          .rows = rows,
          .stored = stored,
          .group = call.group(),
          .head_dim = head_dim,
          .columns = head_dim / (16 * PerWord(stored)),
          .in_scale = cap > 0 ? scale / cap : scale * kLog2E,
          .log2_cap = cap > 0 ? cap * kLog2E : 0.0f};
}

// Calls visit(key of the tile, rows of K, rows of V) for what the tile's keys that any row sees have in each block.
template <class Visit>
void ForBlocks(const Shape& shape, int32_t kv_head, const Tile& tile, Visit visit) {
  const BlockLayout& layout = shape.call.pool.layout;
  for (int j = tile.seen.begin; j < tile.seen.end;) {
    const int64_t token = (tile.start + j) % layout.block_tokens;
    const int64_t id = shape.rows.sequence.block_table[(tile.start + j) / layout.block_tokens];
    const std::byte* block = shape.call.pool.base + id * shape.call.pool.slot_stride;
    const int run = static_cast<int>(std::min<int64_t>(tile.seen.end - j, layout.block_tokens - token));
    visit(j, RowsOfTokens(layout, block, shape.call.layer, 0, kv_head, token, run),
          RowsOfTokens(layout, block, shape.call.layer, 1, kv_head, token, run));
    j += run;
  }
}

// Points `to` at the keys of a kv head in the tile that any row sees, and at zeros elsewhere, so that what no query
// sees is not read: it may never have been written. Asks for their descales.
void GatherTile(const Shape& shape, int32_t kv_head, const Tile& tile, TileRows& to, Scratch& s) {
  if (tile.seen.begin > 0 || tile.seen.end < kTile) {
    std::fill_n(to.key, kTile, reinterpret_cast<const std::byte*>(s.zeros));
    std::fill_n(to.value, kTile, reinterpret_cast<const std::byte*>(s.zeros));
  }
  ForBlocks(shape, kv_head, tile, [&](int j, const auto& keys, const auto& values) {
    if (shape.stored == Stored::kInt8) {
      for (const auto& rows : {keys, values}) {
        for (int64_t i = 0; i < rows.count; i += kVector / kDescaleBytes) __builtin_prefetch(rows.Descales(i));
        __builtin_prefetch(rows.Descales(rows.count - 1));
      }
    }
    for (int64_t i = 0; i < keys.count; ++i) {
      to.key[j + i] = keys.Row(i);
      to.value[j + i] = values.Row(i);
    }
  });
}

void CopyDescales(const StoredRows<const std::byte>& rows, float* to) {
  if (rows.descale_stride == kDescaleBytes) {
    std::memcpy(to, rows.descales, static_cast<size_t>(rows.count * kDescaleBytes));
  } else {
    for (int64_t i = 0; i < rows.count; ++i) std::memcpy(to + i, rows.Descales(i), sizeof(float));
  }
}

void GatherDescales(const Shape& shape, int32_t kv_head, const Tile& tile, TileRows& to) {
  if (tile.seen.begin > 0 || tile.seen.end < kTile) {
    std::fill_n(to.key_descale, kTile, 0.0f);
    std::fill_n(to.value_descale, kTile, 0.0f);
  }
  ForBlocks(shape, kv_head, tile, [&](int j, const auto& keys, const auto& values) {
    CopyDescales(keys, to.key_descale + j);
    CopyDescales(values, to.value_descale + j);
  });
}

void BeginTile(int64_t start, int count, const Scratch& s, Tile& tile) {
  tile.start = start;
  tile.first = tile.last = 0;
  for (int r = 0; r < count; ++r) {
    tile.ranges[r] = {static_cast<int>(std::clamp<int64_t>(s.seen[r].begin - start, 0, kTile)),
                      static_cast<int>(std::clamp<int64_t>(s.seen[r].end - start, 0, kTile))};
    if (tile.ranges[r].begin >= tile.ranges[r].end) continue;
    if (tile.last == 0) tile.first = r;
    tile.last = r + 1;
  }
  tile.seen = {};
  if (tile.last > 0) tile.seen = {tile.ranges[tile.first].begin, tile.ranges[tile.last - 1].end};
}

}  // namespace
}  // namespace kvmesh::avx512

KVMESH_AVX512_BEGIN
namespace kvmesh::avx512 {
namespace {

void BeginRows(const Shape& shape, KeyRange keys, Scratch& s) {
  const int64_t window = shape.call.params.window;
  s.query_stride = int64_t{shape.columns} * kVector * (shape.stored == Stored::kF32 ? 1 : 2);
  s.acc_stride = shape.head_dim;
  alignas(kVector) float query[kMaxDim];
  for (int r = 0; r < shape.rows.size(); ++r) {
    const int64_t index = shape.rows.Index(r, shape.call.params, shape.group);
    std::copy_n(&shape.call.query[index * shape.head_dim], shape.head_dim, query);
    if (shape.stored == Stored::kInt8) {
      StoreInt8Query(query, shape.head_dim, shape.in_scale, r, s);
    } else if (shape.stored == Stored::kBf16) {
      for (int c = 0; c < shape.columns; ++c) {
        const __m512 scale = _mm512_set1_ps(shape.in_scale);
        const Bf16Digits digits = SplitBf16(_mm512_mul_ps(_mm512_load_ps(query + c * 32), scale),
                                            _mm512_mul_ps(_mm512_load_ps(query + c * 32 + 16), scale));
        _mm512_store_si512(s.Query(r) + c * kVector, digits.high);
        _mm512_store_si512(s.Query(r) + (shape.columns + c) * kVector, digits.low);
      }
    } else {
      for (int c = 0; c < shape.columns; ++c) {
        const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(query + c * 16), _mm512_set1_ps(shape.in_scale));
        _mm512_store_ps(s.Query(r) + c * kVector, scaled);
      }
    }
    const int64_t end = shape.rows.Position(r, shape.group) + 1;
    s.seen[r] = {std::max(window > 0 ? end - window : 0, keys.begin), std::min(end, keys.end)};
    s.highest[r] = -std::numeric_limits<float>::infinity();
    std::fill_n(s.Acc(r), shape.head_dim, 0.0f);
    std::fill_n(s.sums[r], 16, 0.0f);
  }
}

void EndRows(const Shape& shape, RowStates to, Scratch& s) {
  for (int r = 0; r < shape.rows.size(); ++r) {
    float sum = 0;
    for (int i = 0; i < 16; ++i) sum += s.sums[r][i];
    const bool empty = sum == 0;
    const float inverse = empty ? 0.0f : 1.0f / sum;
    const float* acc = s.Acc(r);
    float* out = to.out + int64_t{r} * shape.head_dim;
    for (int d = 0; d < shape.head_dim; d += 4) {
      const float* four = acc + ElementAt(d, shape.stored);
      for (int i = 0; i < 4; ++i) out[d + i] = four[i] * inverse;
    }
    to.lse[r] = empty ? -std::numeric_limits<float>::infinity()
                      : static_cast<float>(s.highest[r] * 0.69314718055994531 + std::log(double{sum}));
  }
}

// Rows [first, last), all of which see the keys `range`.
template <Stored kStored>
void AddRows(int first, int last, const std::byte* const* values, const std::byte* const* next, TileRange range,
             int vectors, Scratch& s) {
  int r = first;
  for (; r + 4 <= last; r += 4) {
    AddValues<kStored, 4>(values, next, range, r, vectors, s);
    next = values;
  }
  if (r + 2 <= last) {
    AddValues<kStored, 2>(values, next, range, r, vectors, s);
    next = values;
    r += 2;
  }
  if (r < last) AddValues<kStored, 1>(values, next, range, r, vectors, s);
}

// One kv head's rows, from row `base` on, against a tile. next: rows that come after these, or null for none.
template <Stored kStored>
void AttendTile(const Shape& shape, const Tile& tile, const TileRows& rows, const TileRows* next, int base,
                Scratch& s) {
  const std::byte* const* next_keys = next == nullptr ? rows.key : next->key;
  const std::byte* const* next_values = next == nullptr ? rows.value : next->value;
  const int first_row = base + tile.first, last_row = base + tile.last;
  // A few rows over fp32 keys are bound by memory, which prefers to be read block by block; all else by the sums.
  constexpr int kFewKeys = kStored == Stored::kF32 ? 16 : kTile;
  if (last_row - first_row <= kFewRows) {
    ScoreTile<kStored, kFewKeys>(rows.key, next_keys, first_row, last_row, shape.columns, tile.seen, s);
  } else {
    ScoreTile<kStored, kTile>(rows.key, next_keys, first_row, last_row, shape.columns, tile.seen, s);
  }
  for (int r = tile.first; r < tile.last; ++r) {
    WeighRow<kStored>(rows, base + r, tile.ranges[r], shape.log2_cap, s);
  }
  for (int first = tile.first, last = first; first < tile.last; first = last) {
    const TileRange range = tile.ranges[first];
    while (last < tile.last && tile.ranges[last] == range) ++last;
    const std::byte* const* values = rows.value;
    if (!(range == tile.seen)) {
      // A weight of 0 does not hide a value that is not finite.
      for (int j = 0; j < kTile; ++j) {
        const bool sees = j >= range.begin && j < range.end;
        s.own[j] = sees ? values[j] : reinterpret_cast<const std::byte*>(s.zeros);
      }
      values = s.own;
    }
    AddRows<kStored>(base + first, base + last, values, next_values, range, shape.head_dim / 16, s);
    next_values = values;
  }
}

void AttendTile(const Shape& shape, const Tile& tile, const TileRows& rows, const TileRows* next, int base,
                Scratch& s) {
  switch (shape.stored) {
    case Stored::kF32:
      return AttendTile<Stored::kF32>(shape, tile, rows, next, base, s);
    case Stored::kBf16:
      return AttendTile<Stored::kBf16>(shape, tile, rows, next, base, s);
    case Stored::kInt8:
      return AttendTile<Stored::kInt8>(shape, tile, rows, next, base, s);
  }
}

// Tile by tile, and in each all kv heads. The rows of the next kv head, or of the next tile's first one, are known and
// asked for while these are multiplied.
void AttendTiles(const Shape& shape, Scratch& s) {
  const int count = shape.rows.count;
  const int32_t heads = shape.rows.kv_heads, head = shape.rows.kv_head;
  const int64_t first = s.seen[0].begin / kTile * kTile, last = s.seen[count - 1].end;
  if (first >= last) return;
  int now = 0;
  BeginTile(first, count, s, s.tiles[0]);
  GatherTile(shape, head, s.tiles[0], s.rows[0], s);
  for (int64_t start = first, tile = 0; start < last; start += kTile, tile ^= 1) {
    const bool more = start + kTile < last;
    if (more) BeginTile(start + kTile, count, s, s.tiles[tile ^ 1]);
    for (int32_t i = 0; i < heads; ++i, now ^= 1) {
      const bool same = i + 1 < heads, any = same || more;
      TileRows& next = s.rows[now ^ 1];
      if (any) GatherTile(shape, same ? head + i + 1 : head, s.tiles[same ? tile : tile ^ 1], next, s);
      if (shape.stored == Stored::kInt8) GatherDescales(shape, head + i, s.tiles[tile], s.rows[now]);
      AttendTile(shape, s.tiles[tile], s.rows[now], any ? &next : nullptr, i * count, s);
    }
  }
}

void Attend(const Shape& shape, KeyRange keys, RowStates out, Scratch& s) {
  BeginRows(shape, keys, s);
  AttendTiles(shape, s);
  EndRows(shape, out, s);
}

}  // namespace
}  // namespace kvmesh::avx512
KVMESH_AVX512_END

namespace kvmesh::avx512 {

bool Supported() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}

void AttendRows(const AttentionCall& call, const AttentionRows& rows, KeyRange keys, RowStates out) {
  const std::optional<Stored> stored = StoredOf(call.pool.layout);
  if (!stored) return cpu::AttendRows(call, rows, keys, out);
  thread_local std::unique_ptr<Scratch> scratch = std::make_unique<Scratch>();
  Attend(ShapeOf(call, rows, *stored), keys, out, *scratch);
}

}  // namespace kvmesh::avx512

#endif  // !defined(__x86_64__)
