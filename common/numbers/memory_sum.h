/* A sum of any memory, by which one sees whether it has changed. */
#ifndef PS_MEMORY_SUM_H
#define PS_MEMORY_SUM_H

#include <stdint.h>

/* A change of one word of 4 bytes always changes the sum; one of many is missed once in
 * 2^32, also where it is the same for all of them (another sign, twice as much). NULL with
 * 0 bytes is fine. Vectorised. */
uint32_t ps_memory_sum(const void *from, uint64_t bytes);

#endif
