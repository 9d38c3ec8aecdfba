// Requantizes 1 000 000 accumulators with gemmlowp's functions. Prints a line for each 1000: the
// FNV-1a hash of their results as little-endian words. src/quant/fixed.rs makes the same inputs.

#include <cstdint>
#include <cstdio>
#include <fixedpoint/fixedpoint.h>

static uint64_t state;

// SplitMix64.
static uint64_t next() {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

template <int Exponent>
static int32_t shifted_left(int32_t x, int exponent) {
  if constexpr (Exponent > 30) {
    return 0;
  } else {
    return exponent == Exponent ? gemmlowp::SaturatingRoundingMultiplyByPOT<Exponent>(x)
                                : shifted_left<Exponent + 1>(x, exponent);
  }
}

static int32_t requantized(int32_t x, int32_t multiplier, int shift) {
  int32_t left = shift > 0 ? shifted_left<0>(x, shift) : x;
  int32_t product = gemmlowp::SaturatingRoundingDoublingHighMul(left, multiplier);
  return gemmlowp::RoundingDivideByPOT(product, shift < 0 ? -shift : 0);
}

int main() {
  static const int32_t ENDS[8] = {INT32_MIN, INT32_MIN + 1, -2, -1, 0, 1, INT32_MAX - 1, INT32_MAX};
  uint64_t hash = 0xcbf29ce484222325u;
  for (int i = 0; i < 1000000; i++) {
    uint64_t r = next();
    int32_t x = (int32_t)(uint32_t)r;
    int32_t multiplier = (1 << 30) + (int32_t)(r >> 34);
    int shift = (int)(next() % 62) - 31;
    switch (i % 8) {
      case 0: break;
      case 1: x >>= 11; break;
      // Products halfway between two integers.
      case 2: x |= 1, multiplier = 1 << 30; break;
      // Quotients halfway between two integers.
      case 3:
        multiplier = 1 << 30, shift = -(1 + (int)(next() % 30));
        x = (int32_t)((uint32_t)(x << 1 | 1) << -shift);
        break;
      case 4: x = ENDS[r % 8], multiplier = next() % 2 ? 1 << 30 : INT32_MAX; break;
      case 5: multiplier = i % 16 < 8 ? 0 : multiplier; break;
      // Around the largest number that a shift to the left allows.
      case 6:
        shift = (int)(next() % 31);
        x = (int32_t)((uint32_t)((x < 0 ? INT32_MIN : INT32_MAX) >> shift) + (uint32_t)(next() % 5) - 2u);
        break;
      default: shift = -(int)(next() % 9); break;
    }
    uint32_t y = (uint32_t)requantized(x, multiplier, shift);
    for (int byte = 0; byte < 4; byte++) hash = (hash ^ (y >> 8 * byte & 255)) * 0x100000001b3u;
    if (i % 1000 == 999) {
      std::printf("%016llx\n", (unsigned long long)hash);
      hash = 0xcbf29ce484222325u;
    }
  }
}
