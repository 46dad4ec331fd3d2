#include "core/crc32.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include "core/crc32_poly.hpp"

#define GDSCKPT_TARGET_SSE __attribute__((target("sse4.1,pclmul")))
#define GDSCKPT_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,vpclmulqdq,pclmul,sse4.1")))

namespace gdsckpt::crc32_detail {
namespace {

using crc32_poly::fold_multiplier;

// From here on the fused copy stores past the caches: the destination (a slab that the device
// reads, a tensor of many megabytes) is not looked at again soon, and a plain store would first
// read the line it overwrites (16 MiB blocks: 6 -> 10 GB/s). Below, the copy is likely to be used
// while it is in the cache.
constexpr std::size_t kStreamBytes = 256 * 1024;

// So far ahead of the loads, lines are asked for: the processor's own prefetching stops at the end
// of a page. (16 MiB blocks from memory, Xeon with AVX-512, one core: CRC 10 -> 16 GB/s by
// vpclmulqdq, 7 -> 14 GB/s by pclmulqdq; csrc/tests/bench_crc32.cpp.)
constexpr std::size_t kPrefetchBytes = 4096;

/// Asks for the next `kBytes` that are kPrefetchBytes ahead, but for nothing behind the end. Always
/// inlined: GCC 12 takes a function that only prefetches for one without effect and drops the call.
template <std::size_t kBytes>
__attribute__((always_inline)) inline void prefetch(const std::uint8_t* source, std::size_t at,
                                                    std::size_t nbytes) {
  if (nbytes - at < kPrefetchBytes + kBytes) return;
  for (std::size_t line = 0; line < kBytes; line += 64)
    _mm_prefetch(reinterpret_cast<const char*>(source + at + kPrefetchBytes + line), _MM_HINT_T0);
}

/// What the copying kernels do with what they have loaded.
enum class Store { kNone, kPlain, kStream };

/// Multipliers that move 128 bits over `kBits` bits of message: low half, high half.
template <std::uint64_t kBits>
GDSCKPT_TARGET_SSE inline __m128i fold_constants() {
  constexpr std::int64_t kLow = fold_multiplier(kBits + 32);
  constexpr std::int64_t kHigh = fold_multiplier(kBits - 32);
  return _mm_set_epi64x(kHigh, kLow);
}

GDSCKPT_TARGET_SSE inline __m128i fold(__m128i sum, __m128i constants, __m128i data) {
  const __m128i low = _mm_clmulepi64_si128(sum, constants, 0x00);
  const __m128i high = _mm_clmulepi64_si128(sum, constants, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

template <Store kStore>
GDSCKPT_TARGET_SSE inline __m128i load(std::uint8_t* dest, const std::uint8_t* source,
                                       std::size_t at) {
  const __m128i data = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + at));
  if constexpr (kStore == Store::kPlain)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dest + at), data);
  if constexpr (kStore == Store::kStream)
    _mm_stream_si128(reinterpret_cast<__m128i*>(dest + at), data);
  return data;
}

/// The CRC register after a 128-bit remainder: the table takes it as 16 bytes of message.
GDSCKPT_TARGET_SSE inline std::uint32_t reduce(__m128i sum) {
  alignas(16) std::uint8_t bytes[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(bytes), sum);
  return table_update(0xffffffffu, bytes, sizeof bytes);
}

template <Store kStore>
std::uint32_t finish(std::uint32_t value, std::uint8_t* dest, const std::uint8_t* source,
                     std::size_t nbytes) {
  if constexpr (kStore == Store::kNone) return table_update(value, source, nbytes);
  return table_copy_update(value, dest, source, nbytes);
}

/// At least 64 bytes, four 128-bit sums in flight to hide the latency of the multiplier. For
/// kStream `dest` is aligned to 16 bytes.
template <Store kStore>
GDSCKPT_TARGET_SSE std::uint32_t fold_128(std::uint32_t value, std::uint8_t* dest,
                                          const std::uint8_t* source, std::size_t nbytes) {
  __m128i sum0 = load<kStore>(dest, source, 0);
  __m128i sum1 = load<kStore>(dest, source, 16);
  __m128i sum2 = load<kStore>(dest, source, 32);
  __m128i sum3 = load<kStore>(dest, source, 48);
  sum0 = _mm_xor_si128(sum0, _mm_cvtsi32_si128(static_cast<int>(~value)));
  std::size_t at = 64;
  const __m128i by_512 = fold_constants<512>();
  for (; nbytes - at >= 64; at += 64) {
    prefetch<64>(source, at, nbytes);
    sum0 = fold(sum0, by_512, load<kStore>(dest, source, at));
    sum1 = fold(sum1, by_512, load<kStore>(dest, source, at + 16));
    sum2 = fold(sum2, by_512, load<kStore>(dest, source, at + 32));
    sum3 = fold(sum3, by_512, load<kStore>(dest, source, at + 48));
  }
  const __m128i by_128 = fold_constants<128>();
  sum1 = fold(sum0, by_128, sum1);
  sum2 = fold(sum1, by_128, sum2);
  sum3 = fold(sum2, by_128, sum3);
  for (; nbytes - at >= 16; at += 16) sum3 = fold(sum3, by_128, load<kStore>(dest, source, at));
  if constexpr (kStore == Store::kStream) _mm_sfence();
  return finish<kStore>(reduce(sum3), dest + at, source + at, nbytes - at);
}

template <std::uint64_t kBits>
GDSCKPT_TARGET_AVX512 inline __m512i wide_constants() {
  constexpr std::int64_t kLow = fold_multiplier(kBits + 32);
  constexpr std::int64_t kHigh = fold_multiplier(kBits - 32);
  return _mm512_set_epi64(kHigh, kLow, kHigh, kLow, kHigh, kLow, kHigh, kLow);
}

GDSCKPT_TARGET_AVX512 inline __m512i fold(__m512i sum, __m512i constants, __m512i data) {
  constexpr int kXorOfThree = 0x96;
  const __m512i low = _mm512_clmulepi64_epi128(sum, constants, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(sum, constants, 0x11);
  return _mm512_ternarylogic_epi64(low, high, data, kXorOfThree);
}

template <Store kStore>
GDSCKPT_TARGET_AVX512 inline __m512i load_wide(std::uint8_t* dest, const std::uint8_t* source,
                                               std::size_t at) {
  const __m512i data = _mm512_loadu_si512(source + at);
  if constexpr (kStore == Store::kPlain) _mm512_storeu_si512(dest + at, data);
  if constexpr (kStore == Store::kStream)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dest + at), data);
  return data;
}

/// At least 256 bytes, four 512-bit sums in flight. For kStream `dest` is aligned to 64 bytes.
template <Store kStore>
GDSCKPT_TARGET_AVX512 std::uint32_t fold_512(std::uint32_t value, std::uint8_t* dest,
                                             const std::uint8_t* source, std::size_t nbytes) {
  __m512i sum0 = load_wide<kStore>(dest, source, 0);
  __m512i sum1 = load_wide<kStore>(dest, source, 64);
  __m512i sum2 = load_wide<kStore>(dest, source, 128);
  __m512i sum3 = load_wide<kStore>(dest, source, 192);
  const __m128i start = _mm_cvtsi32_si128(static_cast<int>(~value));
  sum0 = _mm512_xor_si512(sum0, _mm512_zextsi128_si512(start));
  std::size_t at = 256;
  const __m512i by_2048 = wide_constants<2048>();
  for (; nbytes - at >= 256; at += 256) {
    prefetch<256>(source, at, nbytes);
    sum0 = fold(sum0, by_2048, load_wide<kStore>(dest, source, at));
    sum1 = fold(sum1, by_2048, load_wide<kStore>(dest, source, at + 64));
    sum2 = fold(sum2, by_2048, load_wide<kStore>(dest, source, at + 128));
    sum3 = fold(sum3, by_2048, load_wide<kStore>(dest, source, at + 192));
  }
  const __m512i by_512 = wide_constants<512>();
  sum1 = fold(sum0, by_512, sum1);
  sum2 = fold(sum1, by_512, sum2);
  sum3 = fold(sum2, by_512, sum3);
  for (; nbytes - at >= 64; at += 64)
    sum3 = fold(sum3, by_512, load_wide<kStore>(dest, source, at));
  const __m128i by_128 = fold_constants<128>();
  // By way of memory: the extracting intrinsics of GCC 12 warn of an uninitialised value (its bug
  // 105593), and this happens once per call.
  alignas(64) __m128i lanes[4];
  _mm512_store_si512(lanes, sum3);
  __m128i sum = fold(lanes[0], by_128, lanes[1]);
  sum = fold(sum, by_128, lanes[2]);
  sum = fold(sum, by_128, lanes[3]);
  for (; nbytes - at >= 16; at += 16) sum = fold(sum, by_128, load<kStore>(dest, source, at));
  if constexpr (kStore == Store::kStream) _mm_sfence();
  return finish<kStore>(reduce(sum), dest + at, source + at, nbytes - at);
}

std::uint32_t sse_update(std::uint32_t value, const std::uint8_t* data, std::size_t nbytes) {
  if (nbytes < 64) return table_update(value, data, nbytes);
  return fold_128<Store::kNone>(value, nullptr, data, nbytes);
}

std::uint32_t avx512_update(std::uint32_t value, const std::uint8_t* data, std::size_t nbytes) {
  if (nbytes < 256) return sse_update(value, data, nbytes);
  return fold_512<Store::kNone>(value, nullptr, data, nbytes);
}

/// Copies up to the next destination address that `alignment` divides; returns the bytes done.
std::size_t copy_to_alignment(std::uint32_t& value, std::uint8_t* dest, const std::uint8_t* source,
                              std::size_t alignment) {
  const std::size_t head_bytes = (0 - reinterpret_cast<std::uintptr_t>(dest)) & (alignment - 1);
  value = table_copy_update(value, dest, source, head_bytes);
  return head_bytes;
}

std::uint32_t sse_copy_update(std::uint32_t value, std::uint8_t* dest, const std::uint8_t* source,
                              std::size_t nbytes) {
  if (nbytes < 64) return table_copy_update(value, dest, source, nbytes);
  if (nbytes < kStreamBytes) return fold_128<Store::kPlain>(value, dest, source, nbytes);
  const std::size_t done = copy_to_alignment(value, dest, source, 16);
  return fold_128<Store::kStream>(value, dest + done, source + done, nbytes - done);
}

std::uint32_t avx512_copy_update(std::uint32_t value, std::uint8_t* dest,
                                 const std::uint8_t* source, std::size_t nbytes) {
  if (nbytes < 256) return sse_copy_update(value, dest, source, nbytes);
  if (nbytes < kStreamBytes) return fold_512<Store::kPlain>(value, dest, source, nbytes);
  const std::size_t done = copy_to_alignment(value, dest, source, 64);
  return fold_512<Store::kStream>(value, dest + done, source + done, nbytes - done);
}

}  // namespace

void append_x86_kernels(std::vector<CrcKernel>& kernels) {
  // __builtin_cpu_supports also asks the operating system (XGETBV) whether it saves the registers.
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("sse4.1")) return;
  if (__builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    kernels.push_back({"vpclmulqdq", avx512_update, avx512_copy_update});
  kernels.push_back({"pclmulqdq", sse_update, sse_copy_update});
}

}  // namespace gdsckpt::crc32_detail

#else

namespace gdsckpt::crc32_detail {
void append_x86_kernels(std::vector<CrcKernel>&) {}
}  // namespace gdsckpt::crc32_detail

#endif
