/* Visits every state that a scenario can reach: depth first, each state once, recognised
 * by a hash of 64 bits. (Two of 10 million states share one by chance once in 400,000
 * runs.) */
#ifndef PROTOCOL_SEARCH_H
#define PROTOCOL_SEARCH_H

#include "protocol_world.h"

typedef struct search_result {
    uint64_t states, actions, ends; // ends: states in which all workers are done
    uint32_t deepest;
    bool cut_off; // by max_states
    /* What is wrong and how it came to that, one action a line; "" if nothing is. */
    char fault[TEXT], trace[8192];
} search_result;

void search(const scenario *s, uint64_t max_states, search_result *out);

#endif
