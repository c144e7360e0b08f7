#include "nearest_name.h"

#include <ctype.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

enum { LONGEST = 63 }; // longer names get no hint

static int nearest_least(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

static bool is_same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* One row of the table at a time: row[j] is the distance of a's first i characters to
 * b's first j. Capital letters are as small ones. */
static int edit_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    if (n > LONGEST || m > LONGEST) return INT_MAX;
    int row[LONGEST + 1];
    for (size_t j = 0; j <= m; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int above = row[j];
            row[j] = nearest_least(above + 1, row[j - 1] + 1,
                                   diagonal + !is_same_letter(a[i - 1], b[j - 1]));
            diagonal = above;
        }
    }
    return row[m];
}

const char *ps_nearest_name(const char *name, const char *const *known, int n)
{
    int best = (int)((strlen(name) + 2) / 3) + 1;
    const char *found = NULL;
    for (int i = 0; i < n; i++) {
        int distance = edit_distance(name, known[i]);
        if (distance >= best) continue;
        best = distance;
        found = known[i];
    }
    return found;
}
