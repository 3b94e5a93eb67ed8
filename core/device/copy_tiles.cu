// copy_tiles: moves tiles between a GPU's memory and memory of the host that is registered with
// CUDA, and sums them on the way (docs/protocol.md section 6).
//
// Compiled ahead, to copy_tiles.ptx: scripts/gpu/ptx.py.  A warp takes a tile at a time: its loads
// of 4 KiB are in flight at once, and a sum needs no other warp.
//
// The layout of Tile is that of core/device/tile.h.

typedef unsigned int u32;
typedef unsigned long long u64;

struct Tile {
  u64 device;    // address in the GPU's memory
  u64 host;      // address in the host's
  u64 position;  // of the tile's first byte in its value
  u32 bytes;     // a multiple of 8, or below 8
  u32 unused;
};

static const u64 kKeyStep = 0x9E3779B97F4A7C15ULL;
static const u32 kLanes = 32;
static const u32 kInFlight = 8;  // loads of one lane

static __device__ __forceinline__ u64 term(u64 word, u64 key) {
  const u64 x = word ^ key;
  return (x & 0xFFFFFFFFULL) * (x >> 32) + ((word << 32) | (word >> 32));
}

static __device__ __forceinline__ u64 key_at(u64 position) { return (position + 1) * kKeyStep; }

static __device__ __forceinline__ u64 pair_term(ulonglong2 pair, u64 position) {
  const u64 key = key_at(position);
  return term(pair.x, key) + term(pair.y, key + 8 * kKeyStep);
}

// `moves`: else only the sum is wanted.
template <bool moves, bool sums>
static __device__ u64 copy_pairs(u64 to, u64 from, u32 bytes, u64 position, u32 lane) {
  const ulonglong2* source = reinterpret_cast<const ulonglong2*>(from);
  ulonglong2* target = reinterpret_cast<ulonglong2*>(to);
  const u32 count = bytes / 16;
  u64 sum = 0;
  u32 at = lane;
  for (; at + (kInFlight - 1) * kLanes < count; at += kInFlight * kLanes) {
    ulonglong2 pairs[kInFlight];
#pragma unroll
    for (u32 i = 0; i < kInFlight; ++i) pairs[i] = __ldcs(source + at + i * kLanes);
#pragma unroll
    for (u32 i = 0; i < kInFlight; ++i) {
      if (moves) __stcs(target + at + i * kLanes, pairs[i]);
      if (sums) sum += pair_term(pairs[i], position + 16ULL * (at + i * kLanes));
    }
  }
#pragma unroll 1
  for (; at < count; at += kLanes) {
    const ulonglong2 pair = __ldcs(source + at);
    if (moves) __stcs(target + at, pair);
    if (sums) sum += pair_term(pair, position + 16ULL * at);
  }
  return sum;
}

template <bool moves, bool sums>
static __device__ u64 copy_words(u64 to, u64 from, u32 bytes, u64 position, u32 lane) {
  u64 sum = 0;
#pragma unroll 1
  for (u32 at = lane; at < bytes / 8; at += kLanes) {
    const u64 word = reinterpret_cast<const u64*>(from)[at];
    if (moves) reinterpret_cast<u64*>(to)[at] = word;
    if (sums) sum += term(word, key_at(position + 8ULL * at));
  }
  return sum;
}

// Of any alignment.
template <bool moves, bool sums>
static __device__ u64 copy_bytes(u64 to, u64 from, u32 bytes, u64 position, u32 lane) {
  const unsigned char* source = reinterpret_cast<const unsigned char*>(from);
  unsigned char* target = reinterpret_cast<unsigned char*>(to);
  u64 sum = 0;
#pragma unroll 1
  for (u32 at = 8 * lane; at < bytes; at += 8 * kLanes) {
    u64 word = 0;
    for (u32 i = 0; i < 8; ++i) {
      if (moves) target[at + i] = source[at + i];
      word |= static_cast<u64>(source[at + i]) << (8 * i);
    }
    if (sums) sum += term(word, key_at(position + at));
  }
  return sum;
}

// Less than a word: others have the rest of it, so the bytes themselves are told.
template <bool moves>
static __device__ u64 copy_fragment(u64 to, u64 from, u32 bytes, u32 lane) {
  if (lane != 0) return 0;
  const unsigned char* source = reinterpret_cast<const unsigned char*>(from);
  u64 word = 0;
#pragma unroll 1
  for (u32 i = 0; i < bytes; ++i) {
    if (moves) reinterpret_cast<unsigned char*>(to)[i] = source[i];
    word |= static_cast<u64>(source[i]) << (8 * i);
  }
  return word;
}

template <bool to_host, bool moves, bool sums>
static __device__ void copy_tiles(const Tile* tiles, u32 count, u64* results) {
  const u32 lane = threadIdx.x % kLanes;
  const u32 warps = gridDim.x * (blockDim.x / kLanes);
  // Neighbours in the list go to different multiprocessors.
  for (u32 i = (threadIdx.x / kLanes) * gridDim.x + blockIdx.x; i < count; i += warps) {
    const Tile tile = tiles[i];
    const u64 to = to_host ? tile.host : tile.device;
    const u64 from = to_host ? tile.device : tile.host;
    const u64 alignment = (moves ? to | from : from) | tile.bytes;
    u64 sum;
    if (tile.bytes < 8) {
      sum = copy_fragment<moves>(to, from, tile.bytes, lane);
    } else if (alignment % 16 == 0) {
      sum = copy_pairs<moves, sums>(to, from, tile.bytes, tile.position, lane);
    } else if (alignment % 8 == 0) {
      sum = copy_words<moves, sums>(to, from, tile.bytes, tile.position, lane);
    } else {
      sum = copy_bytes<moves, sums>(to, from, tile.bytes, tile.position, lane);
    }
    if (!sums) continue;
    for (u32 step = kLanes / 2; step > 0; step /= 2) {
      sum += __shfl_down_sync(0xFFFFFFFF, sum, step);
    }
    if (lane == 0) results[i] = sum;
  }
}

#define KERNEL(name, to_host, moves, sums)                   \
  extern "C" __global__ void __launch_bounds__(1024)         \
      name(const Tile* tiles, u64* results, u32 count) {     \
    copy_tiles<to_host, moves, sums>(tiles, count, results); \
  }

KERNEL(tiles_to_host, true, true, false)
KERNEL(tiles_to_host_summed, true, true, true)
KERNEL(tiles_to_device, false, true, false)
KERNEL(tiles_to_device_summed, false, true, true)
// Of the GPU's memory; a copy engine moves it.
KERNEL(tiles_sums, true, false, true)
