// The rate of single precision.
#define REAL float
#include "common/chains"

KERNEL {
  y_put(get_global_id(0), chains((REAL)(get_global_id(0) & 7), (REAL)p.factor, (REAL)p.addend, p.rounds));
}
