/* What is wrong in a world that a search goes through. */
#ifndef MODEL_FAULT_H
#define MODEL_FAULT_H

#include <stdarg.h>
#include <stdio.h>

enum { TEXT = 300 };
extern char world_fault_text[TEXT]; // the first fault; the search ends

/* NULL: nothing is wrong. */
static inline const char *world_fault(void)
{
    return world_fault_text[0] ? world_fault_text : NULL;
}

__attribute__((format(printf, 1, 2))) static inline void world_wrong(const char *format,
                                                                     ...)
{
    if (world_fault()) return;
    va_list args;
    va_start(args, format);
    vsnprintf(world_fault_text, sizeof world_fault_text, format, args);
    va_end(args);
}

#endif
