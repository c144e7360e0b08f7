/* The protocol between workers and shards, in every order in which its messages can come:
 *
 *     check_protocol [SCENARIO | --nightly]    without: all but the nightly ones
 *
 * Drives the real shards and the real communication of workers (protocol_world.h) through
 * all states that a scenario can reach. In each of them:
 *
 *   - every version of a shard's weights and optimizer state has the bits of a job that
 *     nothing disturbs; so has what a worker computes with, and what its codec has kept
 * back
 *   - what a shard counts is the gradient of that rank, step and weights, of this
 * incarnation
 *   - messages of earlier incarnations change nothing, whenever and however often they
 * come
 *   - nobody reports an error; credits return
 *   - something can still happen, or the job has ended; no state leads back to itself, so
 *     every run ends
 *
 * Then the same with one rule broken: each time the search has to find an error.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "protocol_search.h"

enum { MOST_STATES = 16 << 20 };

static const char *const PLAIN[] = {NULL};
static const char *const CLIP[] = {"optimizer.clip_norm=10", NULL};
static const char *const FP16[] = {"exchange.codec=fp16", NULL};
static const char *const ONEBIT[] = {"exchange.codec=onebit", NULL};

/* more: of the scenario. */
#define SCENARIO(title, keys, n_steps, ...)                                              \
    {                                                                                    \
        .name = (title), .settings = (keys), .steps = (n_steps), __VA_ARGS__             \
    }

static const scenario SCENARIOS[] = {
    SCENARIO("any order", PLAIN, 2, .any_order = true),
    SCENARIO("any order, clipping", CLIP, 2, .any_order = true),
    SCENARIO("2 deaths", PLAIN, 2, .deaths = 2, .snapshot_at = 1),
    SCENARIO("clipping, a loss", CLIP, 2, .losses = 1, .snapshot_at = 1),
    SCENARIO("fp16, a loss", FP16, 2, .losses = 1, .exact_at = 1),
    SCENARIO("onebit, a death", ONEBIT, 2, .deaths = 1, .snapshot_at = 1),
};

/* The first one is also a test of its own in every run. */
static const scenario NIGHTLY[] = {
    SCENARIO("a loss, a death", PLAIN, 2, .losses = 1, .deaths = 1),
    SCENARIO("2 losses", PLAIN, 2, .losses = 2),
    SCENARIO("a loss, 2 deaths", PLAIN, 2, .losses = 1, .deaths = 2, .snapshot_at = 1),
    SCENARIO("3 steps, a loss, a death", PLAIN, 3, .losses = 1, .deaths = 1,
             .snapshot_at = 2),
    SCENARIO("clipping, a loss, a death", CLIP, 2, .losses = 1, .deaths = 1,
             .snapshot_at = 1),
    SCENARIO("onebit, a loss, a death", ONEBIT, 2, .losses = 1, .deaths = 1,
             .exact_at = 1, .snapshot_at = 1),
};

#define MISTAKEN_IN(which, what, keys, ...)                                              \
    {                                                                                    \
        MISTAKE_##which, (what),                                                         \
        {                                                                                \
            .settings = (keys), .steps = 2, __VA_ARGS__                                  \
        }                                                                                \
    }

static const struct {
    mistake mistake;
    const char *what;
    scenario s;
} MISTAKEN[] = {
    MISTAKEN_IN(REPEATED_PUSH_COUNTS, "a repeated push counts twice", PLAIN, .losses = 1),
    MISTAKEN_IN(APPLIED_PUSH_COUNTS, "a push of an applied step counts", PLAIN,
                .losses = 1),
    MISTAKEN_IN(OLD_NONCE_COUNTS, "an old nonce is accepted", PLAIN, .deaths = 1),
    MISTAKEN_IN(SECRETS_STAY, "secrets are those of the incarnation before", PLAIN,
                .deaths = 1),
    MISTAKEN_IN(NOTHING_IS_REPEATED, "nothing is repeated over a new connection", PLAIN,
                .losses = 1),
    MISTAKEN_IN(CREDIT_SURVIVES, "credit of a lost connection is returned", PLAIN,
                .losses = 1),
    MISTAKEN_IN(NO_STATE_IS_RESTORED, "the optimizer's state is not restored", PLAIN,
                .deaths = 1, .snapshot_at = 1),
    MISTAKEN_IN(FEEDBACK_IS_FORGOTTEN, "a codec's feedback is not restored", ONEBIT,
                .deaths = 1, .snapshot_at = 1),
};

/* Whether the scenario is as it should be. */
static bool check(const scenario *s)
{
    static search_result r;
    const uint64_t began = ps_clock_ns();
    search(s, MOST_STATES, &r);
    printf("%-26s %9" PRIu64 " states %10" PRIu64 " actions, %" PRIu64 " ends, depth %u, "
           "%.1f s\n",
           s->name, r.states, r.actions, r.ends, r.deepest,
           (double)(ps_clock_ns() - began) * 1e-9);
    fflush(stdout);
    if (r.fault[0]) printf("%s%s: %s\n", r.trace, s->name, r.fault);
    if (r.cut_off) printf("%s: cut off\n", s->name);
    return !r.fault[0] && !r.cut_off && r.ends > 0;
}

static bool check_mistake(size_t i)
{
    static search_result r;
    scenario s = MISTAKEN[i].s;
    s.name = MISTAKEN[i].what;
    s.mistake = MISTAKEN[i].mistake;
    search(&s, MOST_STATES, &r);
    printf("if %s: after %" PRIu64 " states: %s\n", s.name, r.states,
           r.fault[0] ? r.fault : "NOT FOUND");
    return r.fault[0];
}

#define COUNT(array) (sizeof(array) / sizeof *(array))

static bool same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *asked; // what asks for all of them; NULL: no argument
        const scenario *scenarios;
        size_t n;
    } lists[] = {{NULL, SCENARIOS, COUNT(SCENARIOS)},
                 {"--nightly", NIGHTLY, COUNT(NIGHTLY)}};
    const char *asked = argc > 1 ? argv[1] : NULL;
    int failed = 0, n = 0;
    for (size_t l = 0; l < COUNT(lists); l++) {
        const bool all = same(asked, lists[l].asked);
        for (size_t i = 0; i < lists[l].n; i++) {
            if (!all && !same(asked, lists[l].scenarios[i].name)) continue;
            failed += !check(&lists[l].scenarios[i]);
            n++;
        }
    }
    for (size_t i = 0; i < COUNT(MISTAKEN) && !asked; i++)
        failed += !check_mistake(i);
    return failed > 0 || n == 0;
}
