/* For programs that use the C interface as a test. */
#ifndef CHECK_H
#define CHECK_H

#include "tlite.h"

#include <stdio.h>
#include <stdlib.h>

/* Ends the program with 1 unless the condition holds. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s; the last error: \"%s\"\n", __FILE__, __LINE__,     \
                    #condition, tlite_last_error());                                               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
