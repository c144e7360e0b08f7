/* The linker puts this in the place of ps_mem_room (--wrap): a test sees each call first.
 */
#ifndef TEST_MEM_ROOM_H
#define TEST_MEM_ROOM_H

#include "mem.h"

/* The test's own. What it returns, unless PS_OK, is the call's error. */
static ps_err before_mem_room(uint32_t n, const char *what);

ps_err __real_ps_mem_room(void *array, uint32_t n, uint32_t *room, size_t size,
                          const char *what);
ps_err __wrap_ps_mem_room(void *array, uint32_t n, uint32_t *room, size_t size,
                          const char *what);
ps_err __wrap_ps_mem_room(void *array, uint32_t n, uint32_t *room, size_t size,
                          const char *what)
{
    PS_TRY(before_mem_room(n, what));
    return __real_ps_mem_room(array, n, room, size, what);
}

#endif
