// E0M words (src/quant/mod.rs). Kernels walk along K in steps of PER weights. The codes of a step stand in a word of the plane of the high
// bits, HIGH wide where it is not the whole code of 4 or 8 bits, and, with LOW, in one of the plane of the low bits.
// A scale holds for GROUP * SPAN weights.
#ifdef PER4
#define PER 4
#else
#define PER 8
#endif
#ifndef SPAN
#define SPAN 1
#endif
#define E0M_GROUPS(k) (((k) + GROUP * SPAN - 1) / (GROUP * SPAN))
// Rows of words that so many steps take.
#define E0M_ROWS(steps) ((steps) * (PER * BITS) / 32)

// Row of the words of step t of a plane, and by how much they are shifted to have the step's codes in the place of those of the first.
#define E0M_ROW(t, width, first) ((t) / 4 * BITS + first + (t) % 4 * width / 4)
#define E0M_SHIFT(t, width) ((t) % (4 / width) * (4 * width))
#ifdef HIGH
#define E0M_HIGH(load, at, t, panel) (load((at) + E0M_ROW(t, HIGH, 0) * (panel)) >> E0M_SHIFT(t, HIGH))
#define E0M_WIDTH HIGH
#else
#define E0M_HIGH(load, at, t, panel) load((at) + (t) * (panel))
#define E0M_WIDTH BITS
#endif
#ifdef LOW
#define E0M_LOW(load, at, t, panel) (load((at) + E0M_ROW(t, LOW, HIGH) * (panel)) >> E0M_SHIFT(t, LOW))
#else
#define E0M_LOW(load, at, t, panel) 0
#endif

// Bits of w1 of weight k of a step, a constant: one shift and one AND-OR a plane; words may be vectors. Code k is bit field
// k / 2 * width + k % 2 * 16 of a plane's word.
#define E0M_FIELD(k, width) ((k) / 2 * (width) + (k) % 2 * 16)
#define E0M_MOVE(word, from, to) ((from) <= (to) ? (word) << (uint)((to) - (from)) : (word) >> (uint)((from) - (to)))
#define E0M_PART(word, k, width, to) (E0M_MOVE(word, E0M_FIELD(k, width), to) & (((1u << (width)) - 1u) << (to)))
#ifdef LOW
#define E0M_LEVEL(word, low, k) (E0M_PART(word, k, HIGH, 23 - HIGH) | E0M_PART(low, k, LOW, 23 - BITS) | 0x40000000u)
#else
#define E0M_LEVEL(word, low, k) (E0M_PART(word, k, E0M_WIDTH, 23 - E0M_WIDTH) | 0x40000000u)
#endif

// Finite halves in the low 16 bits of each element, as floats, by integer arithmetic: CPU compilers make vectors of it.
#define E0M_HALF(type, h) (CAT(as_, type)((((h) & 0x7FFFu) << 13u) | (((h) & 0x8000u) << 16u)) * 0x1p112f)

// Bits of w1 as halves, divided by a power of two that the exponent sets: weights 2k and 2k + 1 of a step, in the two halves of each word, by
// as many operations as one weight takes.
#define E0M_BOTH(word, k, width, to) (E0M_MOVE(word, (k) * (width), to) & ((((1u << (width)) - 1u) << (to)) * 0x10001u))
#ifdef LOW
#define E0M_HALVES(word, low, k, exponent) (E0M_BOTH(word, k, HIGH, 10 - HIGH) | E0M_BOTH(low, k, LOW, 10 - BITS) | (exponent))
#else
#define E0M_HALVES(word, low, k, exponent) (E0M_BOTH(word, k, E0M_WIDTH, 10 - E0M_WIDTH) | (exponent))
#endif
// w1 / 16: eight products of (w1 - b) / 16 with any halves stay finite when they are added up.
#define E0M_UNIT 16.0f
#define E0M_PAIR(word, low, k) E0M_HALVES(word, low, k, 0x30003000u)
