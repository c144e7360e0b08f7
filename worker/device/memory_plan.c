#include "memory_plan.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "mem.h"

/* STAGGER separates neighbouring slots by a page and a bit: memory streams at the same
 * offset from a 4 KiB boundary slow each other down. */
enum { HUGE_PAGE = 2 << 20, STAGGER = 4096 + 192 };

/* The smallest free slot that is large enough, else the largest free one. */
static int best_free(const ps_memory_plan *m, size_t bytes)
{
    int best = PS_NO_SLOT;
    for (int i = 0; i < m->n_slots; i++) {
        const ps_memory_slot *s = &m->slots[i];
        if (!s->free) continue;
        if (best == PS_NO_SLOT) {
            best = i;
            continue;
        }
        size_t b = m->slots[best].bytes;
        if (b >= bytes ? s->bytes >= bytes && s->bytes < b : s->bytes > b) best = i;
    }
    return best;
}

ps_err ps_memory_plan_take(ps_memory_plan *m, size_t bytes, int *slot)
{
    *slot = PS_NO_SLOT;
    if (bytes == 0) return PS_OK;
    int i = best_free(m, bytes);
    if (i == PS_NO_SLOT) {
        PS_TRY(ps_mem_room(&m->slots, (uint32_t)m->n_slots, &m->room, sizeof *m->slots,
                           "the model's buffers"));
        i = m->n_slots++;
        m->slots[i] = (ps_memory_slot){0};
    }
    if (m->slots[i].bytes < bytes) m->slots[i].bytes = bytes;
    m->slots[i].free = false;
    *slot = i;
    return PS_OK;
}

void ps_memory_plan_give(ps_memory_plan *m, int slot)
{
    if (slot != PS_NO_SLOT) m->slots[slot].free = true;
}

static bool take_spare(ps_memory_plan *m, ps_spare_memory *spare)
{
    if (!spare || !spare->base || spare->bytes < m->bytes) return false;
    m->base = spare->base;
    m->allocated = spare->bytes;
    *spare = (ps_spare_memory){0};
    memset(m->base, 0, m->bytes);
    return true;
}

static ps_err memory_plan_allocate(ps_memory_plan *m)
{
    size_t bytes = (m->bytes / HUGE_PAGE + 1) * HUGE_PAGE;
    m->base = aligned_alloc(HUGE_PAGE, bytes);
    if (!m->base)
        return ps_err_set(PS_ERR_NOMEM,
                          "no memory for the model's activations and their gradients "
                          "(%zu bytes); a smaller data.batch needs less",
                          bytes);
    madvise(m->base, bytes, MADV_HUGEPAGE); // only advice: ignore failures
    memset(m->base, 0, m->bytes);
    m->allocated = bytes;
    return PS_OK;
}

ps_err ps_memory_plan_layout(ps_memory_plan *m, const ps_memory_plan *other,
                             ps_spare_memory *spare)
{
    m->bytes = 0;
    for (int i = 0; i < m->n_slots; i++) {
        m->slots[i].offset = m->bytes;
        m->bytes += (m->slots[i].bytes + 63) / 64 * 64;
        if (m->slots[i].bytes >= STAGGER) m->bytes += STAGGER;
    }
    if (other && other->base && other->bytes >= m->bytes) {
        m->base = other->base;
        m->borrowed = true;
        return PS_OK;
    }
    return take_spare(m, spare) ? PS_OK : memory_plan_allocate(m);
}

void *ps_memory_plan_at(const ps_memory_plan *m, int slot)
{
    return slot == PS_NO_SLOT ? NULL : m->base + m->slots[slot].offset;
}

void ps_memory_plan_fini(ps_memory_plan *m, ps_spare_memory *spare)
{
    if (spare && !m->borrowed && m->allocated > spare->bytes) {
        ps_spare_memory_fini(spare);
        *spare = (ps_spare_memory){m->base, m->allocated};
        m->base = NULL;
    }
    if (!m->borrowed) free(m->base);
    free(m->slots);
    *m = (ps_memory_plan){0};
}

void ps_spare_memory_fini(ps_spare_memory *spare)
{
    free(spare->base);
    *spare = (ps_spare_memory){0};
}
