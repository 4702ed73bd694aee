// Memory offsets of a sequence and head, and which keys a query sees.
#pragma once

#include "../common/attention_math.h"
#include "../common/dropout.h"
#include "../common/half_types.h"
#include "../common/mask.h"
#include "cuda_intrinsics.h"
#include "problem.h"

namespace qacg::cuda {

// One sequence and head. In a packed tensor the sequence's rows start at `first_row`. Of the sequence's `all_keys`
// keys, those at and beyond `keys` are hidden.
struct Sequence {
  int index, head, first_row, queries, keys, all_keys;
};

QACG_DEVICE int64_t clamped(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

QACG_DEVICE int64_t number_at(const Integers& v, int64_t index) {
  return v.wide ? static_cast<const int64_t*>(v.data)[index] : static_cast<const int32_t*>(v.data)[index];
}

// The host does not validate lengths and offsets, so they are clamped to stay inside the tensors.
QACG_DEVICE Sequence sequence_of(const Problem& p, int64_t index, int64_t head) {
  if (p.cu_seqlens.data) {
    const int64_t first = clamped(number_at(p.cu_seqlens, index), 0, p.packed_rows);
    const int64_t last = clamped(number_at(p.cu_seqlens, index + 1), first, p.packed_rows);
    const int length = static_cast<int>(last - first < p.query_length ? last - first : p.query_length);
    return {static_cast<int>(index), static_cast<int>(head), static_cast<int>(first), length, length, length};
  }
  const int all = static_cast<int>(p.key_length);
  const int keys = p.key_lengths.data ? static_cast<int>(clamped(number_at(p.key_lengths, index), 0, all)) : all;
  return {static_cast<int>(index), static_cast<int>(head), 0, static_cast<int>(p.query_length), keys, all};
}

// The share of a thread block: `length` rows or keys are cut into blocks, and the blocks of a head are consecutive.
struct Unit {
  Sequence sequence;
  int first;
};

QACG_DEVICE Unit unit_of(const Problem& p, int64_t length, int rows_per_block) {
  const int64_t blocks = (length + rows_per_block - 1) / rows_per_block;
  const int64_t pair = block_index() / blocks;
  return {sequence_of(p, pair / p.heads, pair % p.heads), static_cast<int>(block_index() % blocks) * rows_per_block};
}

inline int64_t unit_count(const Problem& p, int64_t length, int rows_per_block) {
  return (length + rows_per_block - 1) / rows_per_block * p.sequences * p.heads;
}

// `opaque` keeps the loop-invariant part of six tensors' offsets out of registers, where it would cause spills.
QACG_DEVICE int64_t offset_of(const Tensor4& t, const Sequence& s, int i) {
  return opaque(s.index) * t.batch + opaque(s.head) * t.head + (s.first_row + i) * t.row;
}

QACG_DEVICE int64_t offset_of(const Rows& r, const Sequence& s, int i) {
  return s.index * r.batch + s.head * r.head + (s.first_row + i) * r.row;
}

QACG_DEVICE float& at(const Rows& r, const Sequence& s, int i) {
  return static_cast<float*>(r.data)[offset_of(r, s, i)];
}

QACG_DEVICE RowTerms& terms_at(const Gradients& g, const Sequence& s, int i) {
  return *reinterpret_cast<RowTerms*>(static_cast<float*>(g.terms.data) + offset_of(g.terms, s, i));
}

QACG_DEVICE float read(Element element, const void* data, int64_t offset) {
  if (element == Element::kFloat16) return widen(static_cast<const Float16*>(data)[offset]);
  return widen(static_cast<const Bfloat16*>(data)[offset]);
}

QACG_DEVICE void write(Element element, void* data, int64_t offset, float x) {
  if (element == Element::kFloat16) return narrow(x, static_cast<Float16*>(data)[offset]);
  narrow(x, static_cast<Bfloat16*>(data)[offset]);
}

// The number of keys that lengths and causality leave visible to query i.
QACG_DEVICE int seen_keys(const Problem& p, const Sequence& s, int i) {
  return p.is_causal && i + 1 < s.keys ? i + 1 : s.keys;
}

QACG_DEVICE float bias_of(float value, float hiding) { return value <= hiding ? -INFINITY : value * kLog2e; }

// What the mask adds to a score, as an exponent of 2; -inf if it hides the key.
QACG_DEVICE float mask_at(const Problem& p, const Sequence& s, int i, int j) {
  if (p.mask_kind == Mask::kNone) return 0.0f;
  const int64_t offset =
      s.index * p.mask_strides[0] + s.head * p.mask_strides[1] + i * p.mask_strides[2] + j * p.mask_strides[3];
  if (p.mask_kind == Mask::kBoolean) return static_cast<const uint8_t*>(p.mask)[offset] ? 0.0f : -INFINITY;
  // One branch for each type, so that its kHiding is an immediate operand: in a register it made forward<128> spill.
  if (p.element == Element::kFloat16)
    return bias_of(widen(static_cast<const Float16*>(p.mask)[offset]), kHidingFloat16);
  return bias_of(widen(static_cast<const Bfloat16*>(p.mask)[offset]), kHidingBfloat16);
}

// The bias of query i's context scores, as an exponent of 2; 0 beyond the last query.
QACG_DEVICE float quasi_bias_of(const Problem& p, const Sequence& s, int i) {
  return p.quasi_bias.data && i < s.queries ? at(p.quasi_bias, s, i) * kLog2e : 0.0f;
}

QACG_DEVICE uint32_t sequence_head(const Problem& p, const Sequence& s) {
  return static_cast<uint32_t>(s.index * p.heads + s.head);
}

}  // namespace qacg::cuda
