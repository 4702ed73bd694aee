// csrc/cuda/wgmma.h on a CPU: products of a warp group, which happen at their issue or at a wait that covers them.
// Until that wait their sums are NaN, and neither the sums nor the weights in registers may change. Fragments,
// canonical layouts of shared memory and descriptors: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once

#include <array>
#include <deque>

#include "mma_emulator.h"

namespace qacg::cuda::emulator {

inline int64_t group_products = 0;  // shows tests whether a call used wgmma

constexpr int kStrips = kGroup / kWarp, kGroupRows = 16 * kStrips;

// The fields of a matrix descriptor.
struct Matrix {
  uint32_t address, leading, stride, base_offset, mode;

  explicit Matrix(uint64_t bits)
      : address(field(bits, 0, 14) << 4),
        leading(field(bits, 16, 14) << 4),
        stride(field(bits, 32, 14) << 4),
        base_offset(field(bits, 49, 3)),
        mode(field(bits, 62, 2)) {}

  static uint32_t field(uint64_t bits, int first, int count) { return bits >> first & ((uint64_t{1} << count) - 1); }

  // Row of an atom: 16, 128, 64 or 32 bytes for the modes 0 to 3.
  uint32_t atom_row_bytes() const { return mode == 0 ? 16 : 256 >> mode; }

  // Address of the 16 bytes that begin with element (line, 8 chunk). Lines are rows of the matrix if these are along
  // the sum, else steps of the sum; chunks are along the line.
  uint32_t chunk_address(int line, int chunk, bool along_the_sum) const {
    const uint32_t in_atom = atom_row_bytes() / 16, row = line % 8 * atom_row_bytes(), atom = line / 8;
    uint32_t to;
    if (along_the_sum) {
      to = row + atom * stride + (mode == 0 ? chunk * leading : chunk * 16);
    } else if (mode == 0) {
      to = row + atom * leading + chunk * stride;
    } else {
      to = row + atom * stride + chunk % in_atom * 16 + chunk / in_atom * leading;
    }
    to += address;
    // The swizzle: the address bits of a chunk in an atom's row are combined with those of the 128-byte row.
    return to ^ (to >> 7 & (in_atom - 1)) << 4;
  }
};

// Sums while they are computed. Later products that add to them share them with the product that began them.
struct Sums {
  float at[kGroupRows][256];
};

struct GroupProduct {
  int columns = 0;
  uint64_t left = 0, right = 0;  // descriptors
  bool weighted = false, begins = false, done = false;
  std::array<float*, kGroup> sums{};
  std::array<const uint32_t*, kGroup> weights{};
  std::array<std::array<uint32_t, 4>, kGroup> weight_words{};
  std::shared_ptr<Sums> result;
  std::vector<uint32_t> read;  // addresses of 16 bytes
  races::Place where = nullptr;
  void (*perform)(GroupProduct&) = nullptr;
};

// Registers that a fence has named, and their contents at that time.
struct Named {
  const char* at;
  std::vector<char> bytes;
};

// The products of a warp that it has not waited for.
struct WarpProducts {
  std::vector<std::shared_ptr<GroupProduct>> open;
  std::deque<std::vector<std::shared_ptr<GroupProduct>>> groups;  // committed, oldest first
  bool fenced = false;                                            // since the last wait
  std::array<std::vector<Named>, kWarp> named;

  const GroupProduct* under_way(const float* sums, int thread) const {
    const GroupProduct* last = nullptr;
    const auto look = [&](const auto& products) {
      for (const auto& product : products) {
        if (product->sums[thread % kGroup] == sums) last = product.get();
      }
    };
    for (const auto& group : groups) look(group);
    look(open);
    return last;
  }

  bool was_named(int lane, const void* at, size_t bytes) const {
    const char* first = static_cast<const char*>(at);
    for (const Named& one : named[lane]) {
      if (first < one.at || first + bytes > one.at + one.bytes.size()) continue;
      return memcmp(first, one.bytes.data() + (first - one.at), bytes) == 0;
    }
    return false;
  }
};

inline WarpProducts& products_of(int thread) {
  std::shared_ptr<WarpProducts>& products = machine().warp_of(thread).products;
  if (!products) products = std::make_shared<WarpProducts>();
  return *products;
}

// Eight elements along a line.
QACG_UNHOOKED inline const uint16_t* eight_at(const GroupProduct& product, uint32_t address) {
  static const uint16_t nothing[8] = {};
  Machine& m = machine();
  if (address + 16 > m.shared_bytes) m.fail("wgmma: a matrix beyond the shared memory");
  return address + 16 > m.shared_bytes ? nothing : reinterpret_cast<const uint16_t*>(m.shared + address);
}

template <typename Scalar>
QACG_UNHOOKED void perform(GroupProduct& product) {
  const auto element = [](uint16_t bits) { return widen(Scalar{bits}); };
  static float left[kGroupRows][kDepth], right[kDepth][256];
  for (int row = 0; row < kGroupRows && !product.weighted; ++row) {
    for (int chunk = 0; chunk < 2; ++chunk) {
      const uint16_t* eight = eight_at(product, Matrix(product.left).chunk_address(row, chunk, true));
      for (int n = 0; n < 8; ++n) left[row][8 * chunk + n] = element(eight[n]);
    }
  }
  for (int thread = 0; thread < kGroup && product.weighted; ++thread) {
    const int row = thread / kWarp * 16 + thread % kWarp / 4, pair = thread % 4;
    for (int r = 0; r < 4; ++r) {
      for (int half = 0; half < 2; ++half) {
        const uint16_t bits = static_cast<uint16_t>(product.weight_words[thread][r] >> (16 * half));
        left[row + 8 * (r % 2)][2 * pair + half + 8 * (r / 2)] = element(bits);
      }
    }
  }
  const Matrix matrix(product.right);
  if (product.weighted) {
    for (int k = 0; k < kDepth; ++k) {
      for (int chunk = 0; chunk < product.columns / 8; ++chunk) {
        const uint16_t* eight = eight_at(product, matrix.chunk_address(k, chunk, false));
        for (int n = 0; n < 8; ++n) right[k][8 * chunk + n] = element(eight[n]);
      }
    }
  } else {
    for (int column = 0; column < product.columns; ++column) {
      for (int chunk = 0; chunk < 2; ++chunk) {
        const uint16_t* eight = eight_at(product, matrix.chunk_address(column, chunk, true));
        for (int n = 0; n < 8; ++n) right[8 * chunk + n][column] = element(eight[n]);
      }
    }
  }
  for (int first = 0; first < product.columns; first += 8) {
    float columns[kDepth][8];
    for (int k = 0; k < kDepth; ++k) std::copy(right[k] + first, right[k] + first + 8, columns[k]);
    for (int strip = 0; strip < kStrips; ++strip) {
      float sums[16][8] = {}, rows[16][kDepth];
      for (int i = 0; i < 16; ++i) {
        float* from = product.result->at[16 * strip + i] + first;
        if (!product.begins) std::copy(from, from + 8, sums[i]);
        std::copy(left[16 * strip + i], left[16 * strip + i] + kDepth, rows[i]);
      }
      add_product(sums, rows, columns, machine().truncates);
      for (int i = 0; i < 16; ++i) std::copy(sums[i], sums[i] + 8, product.result->at[16 * strip + i] + first);
    }
  }
  product.done = true;
}

// The sum that is element e of a thread's fragment t.
inline float& sum_of(Sums& sums, int thread, int t, int e) {
  const int row = thread / kWarp * 16 + thread % kWarp / 4 + e / 2 * 8;
  return sums.at[row][8 * t + 2 * (thread % 4) + e % 2];
}

// Performs all products that were issued up to `last`, in order.
QACG_UNHOOKED inline void perform_up_to(const GroupProduct* last) {
  auto& queue = machine().group_of(machine().current->index).queue;
  while (last && !last->done && !queue.empty()) {
    auto* product = static_cast<GroupProduct*>(queue.front().get());
    product->perform(*product);
    queue.erase(queue.begin());
  }
}

// The operands of one thread of a product.
struct Part {
  int columns;
  float* sums;
  const uint32_t* weights;  // or null
  uint64_t left, right;
  bool begins;
  races::Place where;
};

QACG_UNHOOKED inline void check_part(const Part& part, int thread) {
  Machine& m = machine();
  const WarpProducts& products = products_of(thread);
  const GroupProduct* before = products.under_way(part.sums, thread);
  const size_t bytes = part.columns / 2 * sizeof(float);
  if (before && (before->columns != part.columns || part.begins)) {
    m.fail("wgmma: sums are under way in another form");
  } else if (part.begins ? !products.fenced : !before && !products.was_named(thread % kWarp, part.sums, bytes)) {
    m.fail("wgmma: no fence behind the last access to the sums");
  }
  if (part.weights && !products.was_named(thread % kWarp, part.weights, 16)) {
    m.fail("wgmma: no fence behind the last access to the weights");
  }
}

template <typename Scalar>
QACG_UNHOOKED void begin(const Lanes<Part>& of) {
  Machine& m = machine();
  ++products;
  ++group_products;
  const int first = m.current->index / kGroup * kGroup;
  auto product = std::make_shared<GroupProduct>();
  const Part& one = of(0);
  product->columns = one.columns;
  product->left = one.left;
  product->right = one.right;
  product->weighted = one.weights != nullptr;
  product->begins = one.begins;
  product->where = one.where;
  product->perform = perform<Scalar>;
  for (const uint64_t bits : {one.left, one.right}) {
    if (Matrix(bits).base_offset) m.fail("wgmma: a descriptor's base offset, which the emulator does not support");
  }
  const GroupProduct* before = products_of(first).under_way(one.sums, first);
  product->result = before ? before->result : std::make_shared<Sums>();
  for (int n = 0; n < kGroup; ++n) {
    const Part& part = of(n);
    if (part.left != one.left || part.right != one.right) m.fail("wgmma: threads of a group name different matrices");
    check_part(part, first + n);
    product->sums[n] = part.sums;
    product->weights[n] = part.weights;
    if (part.weights) memcpy(product->weight_words[n].data(), part.weights, 16);
    for (int i = 0; i < one.columns / 2 && !before; ++i) sum_of(*product->result, n, i / 4, i % 4) = part.sums[i];
    memset(static_cast<void*>(part.sums), 0xff, one.columns / 2 * sizeof(float));
  }
  const auto add = [&](const Matrix& matrix, int lines, int chunks, bool along) {
    for (int line = 0; line < lines; ++line) {
      for (int chunk = 0; chunk < chunks; ++chunk) product->read.push_back(matrix.chunk_address(line, chunk, along));
    }
  };
  if (product->weighted) {
    add(Matrix(one.right), kDepth, one.columns / 8, false);
  } else {
    add(Matrix(one.left), kGroupRows, 2, true);
    add(Matrix(one.right), one.columns, 2, true);
  }
  for (const uint32_t address : product->read) races::begin_product(first, m.shared + address, 16, one.where);
  for (int strip = 0; strip < kStrips; ++strip) {
    products_of(first + strip * kWarp).open.push_back(product);
    ++m.warp_of(first + strip * kWarp).in_flight;
  }
  m.group_of(first).queue.push_back(product);
  if (m.products_at_once()) perform_up_to(product.get());
}

template <typename Scalar>
QACG_UNHOOKED void issue(const Part& part) {
  machine().together_as_group<Part>("wgmma", part, begin<Scalar>);
}

// Ends a product for one warp.
QACG_UNHOOKED inline void finish(const GroupProduct& product, int first_thread) {
  Machine& m = machine();
  perform_up_to(&product);
  for (const uint32_t address : product.read) races::end_product(first_thread, m.shared + address, 16, product.where);
  --m.warp_of(first_thread).in_flight;
  for (int thread = first_thread; thread < first_thread + kWarp; ++thread) {
    const int n = thread % kGroup;
    if (product.weighted && memcmp(product.weights[n], product.weight_words[n].data(), 16) != 0) {
      m.fail("wgmma: weights were written before the wait for their product");
    }
    float* sums = product.sums[n];
    if (products_of(thread).under_way(sums, thread)) continue;
    for (int i = 0; i < product.columns / 2; ++i) {
      uint32_t bits;
      memcpy(&bits, sums + i, sizeof(bits));
      if (bits != 0xffffffffu) m.fail("wgmma: sums were written before the wait for their product");
      sums[i] = sum_of(*product.result, n, i / 4, i % 4);
    }
  }
}

struct Spans {
  const Named* named;
  int count, groups_left;
};

QACG_UNHOOKED inline void end_products(const Lanes<Spans>& of) {
  Machine& m = machine();
  const int first = m.current->index / kWarp * kWarp;
  WarpProducts& products = products_of(first);
  products.fenced = false;
  while (static_cast<int>(products.groups.size()) > of(0).groups_left) {
    // One by one: the last product that adds to a sum writes it back.
    auto& group = products.groups.front();
    while (!group.empty()) {
      const auto product = group.front();
      group.erase(group.begin());
      finish(*product, first);
    }
    products.groups.pop_front();
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int n = 0; n < of(lane).count; ++n) {
      const float* sums = reinterpret_cast<const float*>(of(lane).named[n].at);
      if (products.under_way(sums, first + lane)) m.fail("wgmma: a wait names sums that are still under way");
    }
  }
}

QACG_UNHOOKED inline void name_registers(const Lanes<Spans>& of) {
  Machine& m = machine();
  const int first = m.current->index / kWarp * kWarp;
  WarpProducts& products = products_of(first);
  products.fenced = true;
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int n = 0; n < of(lane).count; ++n) {
      const Named& now = of(lane).named[n];
      const float* sums = reinterpret_cast<const float*>(now.at);
      if (products.under_way(sums, first + lane)) m.fail("wgmma: a fence names sums that are under way");
      auto& known = products.named[lane];
      const auto same = std::find_if(known.begin(), known.end(), [&](const Named& one) { return one.at == now.at; });
      if (same == known.end()) {
        known.push_back(now);
      } else {
        *same = now;
      }
    }
  }
}

template <typename Register, int kTiles>
Named named(Register (&registers)[kTiles][4]) {
  const char* at = reinterpret_cast<const char*>(&registers);
  return {at, std::vector<char>(at, at + sizeof(registers))};
}

}  // namespace qacg::cuda::emulator

namespace qacg::cuda {

inline void show_to_products() { emulator::races::show_to_products(emulator::machine().current->index); }

template <typename... Registers>
void fence_registers(Registers&... registers) {
  const std::vector<emulator::Named> all{emulator::named(registers)...};
  emulator::machine().together<emulator::Spans>("wgmma.fence", {all.data(), static_cast<int>(all.size()), 0},
                                                emulator::name_registers);
}

inline void commit_products() {
  struct Nothing {};
  emulator::machine().together<Nothing>("wgmma.commit_group", {}, [](const emulator::Lanes<Nothing>&) {
    emulator::WarpProducts& products = emulator::products_of(thread_index());
    products.groups.push_back(std::move(products.open));
    products.open.clear();
  });
}

template <int kGroups, typename... Sums>
void wait_for_products(Sums&... sums) {
  const std::vector<emulator::Named> all{emulator::named(sums)...};
  emulator::machine().together<emulator::Spans>("wgmma.wait_group", {all.data(), static_cast<int>(all.size()), kGroups},
                                                emulator::end_products);
}

template <typename Scalar, int kTiles>
QACG_IN_PLACE void multiply(float (&c)[kTiles][4], uint64_t left, uint64_t right, Scalar) {
  emulator::issue<Scalar>({8 * kTiles, c[0], nullptr, left, right, true, emulator::races::place()});
}

template <typename Scalar, int kTiles>
QACG_IN_PLACE void multiply_add(float (&c)[kTiles][4], uint64_t left, uint64_t right, Scalar) {
  emulator::issue<Scalar>({8 * kTiles, c[0], nullptr, left, right, false, emulator::races::place()});
}

template <typename Scalar, int kTiles>
QACG_IN_PLACE void multiply_add(float (&c)[kTiles][4], const uint32_t (&weights)[4], uint64_t right, Scalar) {
  emulator::issue<Scalar>({8 * kTiles, c[0], weights, 0, right, false, emulator::races::place()});
}

// Whether the GPU has these instructions and the library code for it.
inline const char* find_wgmma(bool* there) {
  const char* value = getenv("QACG_EMULATOR_WGMMA");
  *there = !value || strcmp(value, "0") != 0;
  return nullptr;
}

}  // namespace qacg::cuda

extern "C" inline __attribute__((used)) int64_t qacg_emulator_group_products() {
  return qacg::cuda::emulator::group_products;
}
