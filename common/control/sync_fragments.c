#include "sync_fragments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

ps_err ps_sync_fragments_init(ps_sync_fragments *f, uint32_t n,
                              const ps_sync_rules *rules, const uint64_t *batches)
{
    *f = (ps_sync_fragments){0};
    if (n == 0 || n > PS_MAX_FRAGMENTS || (n > 1 && rules->kind != PS_POLICY_BACKUP))
        return ps_err_set(PS_ERR_ARG, "sync.fragments: %u", n);
    PS_TRY(PS_NEW(&f->parts, n, "the policy"));
    f->n = n;
    PS_TRY(PS_NEW(&f->next, rules->n_workers + 1, "the policy"));
    f->script = rules->script;
    ps_sync_rules each = *rules;
    each.script = NULL;
    for (uint32_t i = 0; i < n; i++) {
        PS_TRY(ps_sync_init(&f->parts[i], &each, batches));
        if (i + 1 < n) f->parts[i].last = ps_sync_fragments_last(f);
    }
    return PS_OK;
}

void ps_sync_fragments_fini(ps_sync_fragments *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        ps_sync_fini(&f->parts[i]);
    free(f->parts);
    free(f->next);
    *f = (ps_sync_fragments){0};
}

/* A new process's pushes are empty: one of each fragment, in any order. */
ps_err ps_sync_fragments_push(ps_sync_fragments *f, uint32_t fragment, uint32_t rank)
{
    ps_sync *s = &f->parts[fragment];
    const bool empty = rank < s->rules.n_workers && s->workers[rank].is_new;
    if (!empty && rank < s->rules.n_workers && f->next[rank] != fragment)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a push of worker %u, of fragment %u instead of %u", rank,
                          fragment, f->next[rank]);
    PS_TRY(ps_sync_push(s, rank));
    if (!empty) f->next[rank] = (fragment + 1) % f->n;
    return PS_OK;
}

ps_err ps_sync_fragments_set_batches(ps_sync_fragments *f, const uint64_t *batches)
{
    for (uint32_t i = 0; i < f->n; i++)
        PS_TRY(ps_sync_set_batches(&f->parts[i], batches));
    return PS_OK;
}

static bool fragments_repeats(const ps_sync_fragments *f)
{
    return f->script && *f->script;
}

bool ps_sync_fragments_may_lose(const ps_sync_fragments *f, uint32_t rank)
{
    return !fragments_repeats(f) && ps_sync_may_lose(&f->parts[0], rank);
}

/* A push without an answer does not count: the fragment is still to be pushed. */
void ps_sync_fragments_lose(ps_sync_fragments *f, uint32_t rank)
{
    const uint32_t before = (f->next[rank] + f->n - 1) % f->n;
    const ps_sync_worker *w = &f->parts[before].workers[rank];
    if (w->phase != PS_SYNC_COMPUTES && !w->is_new) f->next[rank] = before;
    for (uint32_t i = 0; i < f->n; i++)
        ps_sync_lose(&f->parts[i], rank);
}

/* --- deciding ------------------------------------------------------------------------
 */

/* The record's next line is of one fragment; until it can follow, nobody decides. */
static ps_err fragments_repeat(ps_sync_fragments *f, ps_sync_order *out, bool *any)
{
    const char *line = f->script;
    uint32_t fragment = 0;
    if (f->n > 1 && strncmp(line, PS_SYNC_BACK, sizeof PS_SYNC_BACK - 1) != 0) {
        char *end = NULL;
        const unsigned long i = *line == 'f' ? strtoul(line + 1, &end, 10) : 0;
        if (!end || end == line + 1 || *end != ' ' || i >= f->n)
            return ps_err_set(PS_ERR_FORMAT,
                              "the record's line '%.*s' does not name one of the job's "
                              "%u fragments (sync.fragments)",
                              (int)strcspn(line, "\n"), line, f->n);
        fragment = (uint32_t)i;
        line = end + 1;
    }
    ps_sync *s = &f->parts[fragment];
    s->rules.script = line;
    const ps_err err = ps_sync_decide(s, out, any);
    if (err == PS_OK && *any) f->script = s->rules.script;
    s->rules.script = NULL;
    out->fragment = fragment;
    if (err == PS_OK && out->rest && s->last)
        return ps_err_set(PS_ERR_FORMAT,
                          "the record lets workers rest after fragment %u of %u",
                          fragment, f->n);
    return err;
}

static ps_err fragments_decide_now(ps_sync_fragments *f, ps_sync_order *out, bool *any)
{
    *any = false;
    for (uint32_t i = 0; i < f->n && !*any; i++) {
        PS_TRY(ps_sync_decide(&f->parts[i], out, any));
        out->fragment = i;
    }
    return PS_OK;
}

/* All fragments go on from the largest version. */
static void fragments_rest(ps_sync_fragments *f, bool over)
{
    uint64_t version = 0;
    for (uint32_t i = 0; i < f->n; i++)
        if (f->parts[i].version > version) version = f->parts[i].version;
    for (uint32_t i = 0; i < f->n; i++)
        f->parts[i].version = version;
    for (uint32_t i = 0; i < f->n && !over; i++)
        ps_sync_begin_stretch(&f->parts[i]);
    memset(f->next, 0, f->parts[0].rules.n_workers * sizeof *f->next);
}

ps_err ps_sync_fragments_decide(ps_sync_fragments *f, ps_sync_order *out, bool *any)
{
    PS_TRY(fragments_repeats(f) ? fragments_repeat(f, out, any)
                                : fragments_decide_now(f, out, any));
    if (*any && out->rest && f->n > 1) fragments_rest(f, out->over);
    return PS_OK;
}

void ps_sync_fragments_line(const ps_sync_fragments *f, const ps_sync_order *order,
                            char *text, size_t n, size_t *bytes)
{
    size_t head = 0;
    if (f->n > 1 && order->back == 0)
        head = (size_t)snprintf(text, n, "f%u ", order->fragment);
    *bytes = 0;
    if (head >= n) return;
    ps_sync_line(order, text + head, n - head, bytes);
    if (*bytes > 0) *bytes += head;
}
