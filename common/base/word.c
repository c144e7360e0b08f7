#include "word.h"

#include <stdio.h>
#include <string.h>

bool ps_word_find(const ps_word *words, const char *text, int *value)
{
    while (words->name && strcmp(words->name, text) != 0)
        words++;
    if (words->name) *value = words->value;
    return words->name != NULL;
}

const char *ps_word_name(const ps_word *words, int value)
{
    while (words->name && words->value != value)
        words++;
    return words->name ? words->name : "?";
}

const char *ps_word_list(const ps_word *words, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (const ps_word *w = words; w->name && used < bytes; w++) {
        int n =
            snprintf(out + used, bytes - used, "%s%s", w == words ? "" : " | ", w->name);
        used += n > 0 ? (size_t)n : 0;
    }
    return out;
}
