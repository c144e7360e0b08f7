#include "cpu_processor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first processor's text after "field : "; NULL: there is none. Returns owned. */
static char *processor_read_field(const char *field)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char *line = NULL, *text = NULL;
    size_t room = 0;
    while (f && !text && getline(&line, &room, f) > 0) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, field, strlen(field)) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        text = strdup(colon + 1 + strspn(colon + 1, " "));
    }
    free(line);
    if (f) fclose(f);
    return text;
}

void ps_cpu_processor_name(char *out, size_t bytes)
{
    char *name = processor_read_field("model name");
    snprintf(out, bytes, "%s", name ? name : "unknown processor");
    free(name);
}

bool ps_cpu_processor_has(const char *word)
{
    char *flags = processor_read_field("flags"), *rest = NULL;
    const char *flag = flags ? strtok_r(flags, " ", &rest) : NULL;
    while (flag && strcmp(flag, word) != 0)
        flag = strtok_r(NULL, " ", &rest);
    free(flags);
    return flag != NULL;
}
