/* The known name that a mistyped one most likely meant, for hints in messages. */
#ifndef PS_NEAREST_NAME_H
#define PS_NEAREST_NAME_H

/* The entry of known (n) with the least edit distance (Levenshtein) to name, when that is
 * at most a third of the name's length, rounded up; else NULL. The first among equals. */
const char *ps_nearest_name(const char *name, const char *const *known, int n);

#endif
