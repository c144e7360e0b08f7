#include "metric_table.h"

#include <math.h>
#include <string.h>

const ps_metric_entry ps_metric_table[PS_METRICS] = {
#define PS_METRIC_ENTRY(id, name, export, factor, kind, unit, help)                      \
    {name, "pstrain_" export, factor, PS_METRIC_##kind, unit, help},
    PS_METRIC_MAP(PS_METRIC_ENTRY)
#undef PS_METRIC_ENTRY
};

const ps_quality_entry ps_quality_table[PS_QUALITIES] = {
    [PS_QUALITY_ACCURACY] = {"accuracy", PS_METRIC_TEST_ACCURACY},
    [PS_QUALITY_AUC] = {"AUC", PS_METRIC_TEST_AUC},
    [PS_QUALITY_R2] = {"R2", PS_METRIC_TEST_R2}};

void ps_metric_values_init(ps_metric_values *values)
{
    for (int i = 0; i < PS_METRICS; i++)
        ps_metric_set(values, (ps_metric)i, NAN);
}

void ps_metric_set(ps_metric_values *values, ps_metric metric, double value)
{
    uint64_t bits;
    if (!values) return;
    memcpy(&bits, &value, sizeof bits);
    atomic_store_explicit(&values->bits[metric], bits, memory_order_relaxed);
}

void ps_metric_copy(const ps_metric_values *values, double out[PS_METRICS])
{
    for (int i = 0; i < PS_METRICS; i++) {
        const uint64_t bits =
            atomic_load_explicit(&values->bits[i], memory_order_relaxed);
        memcpy(&out[i], &bits, sizeof out[i]);
    }
}
