/* The memory of a step's values: slots that do not overlap, and memory that is left for
 * the next plan. */
#include "check.h"
#include "memory_plan.h"

enum { SLOTS = 3 };

/* Three values that are alive together, of which one is so large. */
static void plan(ps_memory_plan *m, size_t bytes, const ps_memory_plan *other,
                 ps_spare_memory *spare)
{
    const size_t sizes[SLOTS] = {100, bytes, 64};
    *m = (ps_memory_plan){0};
    for (int i = 0; i < SLOTS; i++) {
        int slot;
        assert_ok(ps_memory_plan_take(m, sizes[i], &slot));
        assert_int_equal(slot, i);
    }
    assert_ok(ps_memory_plan_layout(m, other, spare));
}

/* Every byte is zero and belongs to one slot. */
static void fill(const ps_memory_plan *m)
{
    for (int i = 0; i < SLOTS; i++) {
        uint8_t *at = ps_memory_plan_at(m, i);
        assert_int_equal((uintptr_t)at % 64, 0);
        for (size_t k = 0; k < m->slots[i].bytes; k++)
            assert_int_equal(at[k], 0);
        memset(at, i + 1, m->slots[i].bytes);
    }
    for (int i = 0; i < SLOTS; i++) {
        const uint8_t *at = ps_memory_plan_at(m, i);
        for (size_t k = 0; k < m->slots[i].bytes; k++)
            assert_int_equal(at[k], i + 1);
    }
}

TEST(leaves_its_memory_for_the_next)
{
    ps_spare_memory spare = {0};
    ps_memory_plan m;
    plan(&m, 3 << 20, NULL, &spare);
    fill(&m);
    char *const base = m.base;
    ps_memory_plan_fini(&m, &spare);
    assert_ptr_equal(spare.base, base);

    plan(&m, 2 << 20, NULL, &spare); // a smaller one fits; what is left there is cleared
    assert_ptr_equal(m.base, base);
    assert_null(spare.base);
    fill(&m);
    ps_memory_plan larger;
    plan(&larger, 9 << 20, NULL, &spare);
    fill(&larger);
    ps_memory_plan_fini(&m, &spare);
    assert_ptr_equal(spare.base, base);
    char *const most = larger.base;
    ps_memory_plan_fini(&larger, &spare); // takes the smaller one's place
    assert_ptr_equal(spare.base, most);

    plan(&m, 20 << 20, NULL, &spare); // too large for it
    assert_ptr_equal(spare.base, most);
    fill(&m);
    ps_memory_plan_fini(&m, NULL);
    ps_spare_memory_fini(&spare);
    assert_null(spare.base);
}

TEST(borrows_the_memory_of_another)
{
    ps_spare_memory spare = {0};
    ps_memory_plan first, second;
    plan(&first, 3 << 20, NULL, NULL);
    plan(&second, 1 << 20, &first, &spare);
    assert_ptr_equal(second.base, first.base);
    ps_memory_plan_fini(&second, &spare);
    assert_null(spare.base); // it is not its own
    fill(&first);
    ps_memory_plan_fini(&first, NULL);
}
