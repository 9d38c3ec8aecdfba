// Products of matrices of halves on NVIDIA's tensor cores, and asynchronous copies to local memory,
// by inline PTX. The 32 work-items of a warp hold a product of 16 x 16 by 16 x 8 together.
// Work-item 4 g + t has rows g and g + 8 of the left matrix, column g of the right one, and columns
// 2 t and 2 t + 1 of rows g and g + 8 of the result. The terms of the sums may be in any order, as
// long as both matrices agree.
#define MMA(c, a0, a1, a2, a3, b0, b1) \
  asm volatile( \
  "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
    : "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3]) \
    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
// (word & mask) | with, in one instruction; of two constants, compilers make two instructions.
#define MASKED_OR(d, word, mask, with) asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(word), "r"(mask), "r"(with))
#define HALVES_SUB(d, a, b) asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b))
#define HALVES_FMA(d, a, b, c) asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c))
#define HALVES_MUL(d, a, b) asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b))
// Copies 16 bytes to local memory.
#define LOCAL_ADDRESS(at) ((uint)(size_t)(at))
#define COPY16(to, from) \
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"((size_t)(from)) : "memory")
#define COPIES_COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define COPIES_WAIT(left) asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory")
// Two floats as a pair of halves, the first in the low bits.
#define HALVES_OF(d, low, high) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low))
// Loads a right matrix that is stored by rows in local memory. Work-items 0 to 15 pass the
// addresses of its rows of 8 halves.
#define LOAD_TRANSPOSED(b0, b1, at) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(b0), "=r"(b1) : "r"(at) \
      : "memory")
// Exchanges values with the work-item of the warp whose number differs in the bit `apart`; then the
// larger of both, and their sum.
#define WARP_EXCHANGE(d, v, apart) \
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(d) : "f"(v), "n"(apart))
#define WARP_MAX(v, apart) \
  { \
    float other; \
    WARP_EXCHANGE(other, v, apart); \
    v = fmax(v, other); \
  }
#define WARP_SUM(v, apart) \
  { \
    float other; \
    WARP_EXCHANGE(other, v, apart); \
    v += other; \
  }
// Counts up to `last`, then from 0 again, and returns the previous number. Earlier writes to global
// memory are visible to those that count later: those of a warp after WARP_BARRIER. A work-group
// may read them after a barrier.
#define ATOMIC_COUNT(d, at, last) \
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(d) : "l"((size_t)(at)), "r"(last) : "memory")
#define WARP_BARRIER() asm volatile("bar.warp.sync 0xffffffff;" ::: "memory")
// 1 if v is nonzero in the whole warp, else 0.
#define WARP_ALL(v) \
  asm volatile("{ .reg .pred a, b; setp.ne.u32 a, %0, 0; vote.sync.all.pred b, a, 0xffffffff; selp.u32 %0, 1, 0, b; }" \
      : "+r"(v))
// Unpacks a pair of halves to two floats, the low bits first.
#define FLOATS_OF(low, high, word) \
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }" : "=f"(low), "=f"(high) \
      : "r"(word))
