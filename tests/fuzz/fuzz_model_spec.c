/* Any YAML is a model or an error. A model has a plan that covers it, or an error. */
#include <stdlib.h>

#include "model_spec.h"
#include "plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void check_plan(const ps_model_spec *spec)
{
    ps_plan plan;
    uint64_t end = spec->table.arena_count;
    /* At most some thousand chunks: a huge model must not cost more than a small one. */
    if (ps_plan_init(&plan, &spec->table, (ps_chunk_size){.bytes = end / 1024 + 1}, 3) ==
        PS_OK) {
        for (uint32_t i = 0; i < plan.n_chunks; i++) {
            if (plan.chunks[i].offset + plan.chunks[i].count != end) abort();
            end = plan.chunks[i].offset;
        }
        if (end != 0) abort();
    }
    ps_plan_fini(&plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    ps_config cfg = {.file = (char[]){"fuzz"}};
    ps_model_spec spec;
    cfg.model.dropout = true;
    cfg.model.loss = (ps_loss_kind)(n % 3);
    cfg.model.input = (ps_int_list){3, {3, 32, 32}};
    cfg.train.freeze = n % 5 == 0 ? (char[]){"*.bias\nc?nv*\n"} : NULL;
    if (ps_yaml_parse("fuzz", (const char *)bytes, n, &cfg.tree) != PS_OK) return 0;
    if (ps_model_spec_init(&spec, &cfg) == PS_OK) check_plan(&spec);
    ps_model_spec_fini(&spec);
    ps_yaml_destroy(&cfg.tree);
    return 0;
}
