/* Loops over a row are short: for the usual dims their length is a constant, so that they
 * become straight code. PS_ROW_AT_DIM calls a function with the dim as a literal. */
#ifndef PS_ROW_DIM_H
#define PS_ROW_DIM_H

#define PS_ROW_INLINED static inline __attribute__((always_inline))

#define PS_ROW_AT_DIM(dim, call, ...)                                                    \
    switch (dim) {                                                                       \
    case 8:                                                                              \
        call(8, __VA_ARGS__);                                                            \
        break;                                                                           \
    case 16:                                                                             \
        call(16, __VA_ARGS__);                                                           \
        break;                                                                           \
    case 32:                                                                             \
        call(32, __VA_ARGS__);                                                           \
        break;                                                                           \
    case 64:                                                                             \
        call(64, __VA_ARGS__);                                                           \
        break;                                                                           \
    case 128:                                                                            \
        call(128, __VA_ARGS__);                                                          \
        break;                                                                           \
    default:                                                                             \
        call(dim, __VA_ARGS__);                                                          \
    }

#endif
