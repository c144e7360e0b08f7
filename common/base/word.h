/* Words that stand for numbers: one table for each enum that people write or read. */
#ifndef PS_WORD_H
#define PS_WORD_H

#include <stdbool.h>
#include <stddef.h>

/* A table ends with {NULL, 0}; messages list the words in its order. */
typedef struct ps_word {
    const char *name;
    int value;
} ps_word;

/* True when text is one of the words; *value is then its value. */
bool ps_word_find(const ps_word *words, const char *text, int *value);

/* The word for a value; "?" where there is none. */
const char *ps_word_name(const ps_word *words, int value);

/* "sgd | adam | adamw"; cut where it does not fit. Returns out. */
const char *ps_word_list(const ps_word *words, char *out, size_t bytes);

#endif
