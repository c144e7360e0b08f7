/* Worker 0 fetches the record of a rest whole, also where it is stored in pieces, and the
 * coordinator keeps none of it. */
#include "rest_record.h"

#include "check.h"
#include "job_keys.h"
#include "member_rig.h"

static void put_text(rig_part *p, const char *key, const char *text)
{
    rig_note(p, ps_member_put(p->member, key, text, strlen(text), rig_soon()));
}

/* As the coordinator does: the rest itself comes last. */
static void put_rest(rig_part *p, uint64_t n, const char *lines, uint32_t more)
{
    static const char figures[] = "{\"versions\":7}";
    const ps_sync_rest rest = {.step = 11,
                               .version = 22,
                               .figures = {figures, strlen(figures)},
                               .lines = {lines, strlen(lines)},
                               .more = more};
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_sync_rest_write(&w, &rest);
    rig_note(p,
             ps_member_put_written(p->member, ps_job_key_rest(n).text, &w, rig_soon()));
}

static void expect_gone(rig_part *p, const char *key)
{
    void *value = NULL;
    size_t bytes;
    rig_expect(p,
               ps_member_get(p->member, key, &value, &bytes, ps_deadline_in_ms(0)) ==
                   PS_ERR_TIMEOUT,
               "a key that is gone");
    free(value);
}

static void fetch(rig_part *p, uint64_t n, const char *lines)
{
    ps_rest_record r;
    rig_note(p, ps_rest_record_fetch(p->member, n, 10000, &r));
    rig_expect(p, r.rest.step == 11 && r.rest.version == 22, "where the job stands");
    rig_expect(p,
               r.rest.lines.n == strlen(lines) &&
                   memcmp(r.rest.lines.at, lines, r.rest.lines.n) == 0,
               "all lines, in their order");
    rig_expect(p,
               r.rest.figures.n == strlen("{\"versions\":7}") &&
                   memcmp(r.rest.figures.at, "{\"versions\":7}", r.rest.figures.n) == 0,
               "the figures");
    ps_rest_record_fini(&r);
    expect_gone(p, ps_job_key_rest(n).text);
}

static void rest_three_times(rig_part *p)
{
    put_rest(p, 0, "0 0\n1 1", 0);
    fetch(p, 0, "0 0\n1 1");
    put_text(p, "policy/1/1", "\n1 1\n0");
    put_text(p, "policy/1/2", " 0");
    put_rest(p, 1, "0 0", 2);
    fetch(p, 1, "0 0\n1 1\n0 0");
    expect_gone(p, "policy/1/1");
    expect_gone(p, "policy/1/2");
    put_rest(p, 2, "", 0);
    fetch(p, 2, "");
    rig_note(p, ps_member_leave(p->member, rig_soon()));
}

TEST(a_record_is_fetched_whole)
{
    rig_run_well(1, 1, rig_serve, rest_three_times);
}
