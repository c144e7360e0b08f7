#include "data_sets.h"

#include "log.h"
#include "plateau.h"
#include "thread.h"

ps_err ps_data_sets_read(ps_data_sets *d, const ps_config *config,
                         const ps_model_spec *spec)
{
    const bool trains = config->train.epochs > 0;
    const ps_dims *want = &spec->input;
    PS_TRY(ps_dataset_known_state(config, &d->state));
    if (trains)
        PS_TRY(ps_dataset_load(config, PS_SPLIT_TRAIN, want, spec->n_outputs, &d->state,
                               &d->train));
    PS_TRY(ps_dataset_load(config, PS_SPLIT_TEST, want, spec->n_outputs, &d->state,
                           &d->test));
    if (trains && d->test.n > 0) PS_TRY(ps_dataset_doubt_shared(config, &d->test));
    ps_sample_type trained = ps_dataset_type(&d->train);
    if (!trains && config->train.init[0])
        PS_TRY(ps_dataset_trained_type(config, config->train.init, &trained));
    PS_TRY(ps_dataset_doubt_type(config, trained, &d->test));
    PS_TRY(ps_dataset_check_categories(config, d->state));
    const ps_dataset *sets[] = {&d->train, &d->test};
    for (int i = 0; i < 2; i++)
        if (sets[i]->n > 0) PS_TRY(ps_dataset_check_ids(sets[i], spec->n_columns));
    PS_TRY(ps_dataset_columns_check(&d->test.columns, "data.test", &d->train.columns,
                                    "data.train"));
    if (config->train.patience > 0 && d->test.n == 0)
        return ps_err_set(
            PS_ERR_CONFIG,
            "train.patience: there is no test set to judge by: set data.test, "
            "or train.patience=0");
    if (config->checkpoint.best != PS_BEST_NONE && d->test.n == 0)
        return ps_err_set(
            PS_ERR_CONFIG,
            "checkpoint.best: there is no test set to judge by: set data.test, "
            "or checkpoint.best=none");
    if (ps_plateau_on(config) && d->test.n == 0)
        return ps_err_set(PS_ERR_CONFIG,
                          "schedule.name: plateau follows the evaluations, and the test "
                          "split has no samples: name another schedule");
    return PS_OK;
}

static void *read_beside(void *arg)
{
    ps_data_sets *d = arg;
    d->result = ps_err_save(ps_data_sets_read(d, d->config, d->spec));
    return NULL;
}

ps_err ps_data_sets_begin(ps_data_sets *d, const ps_config *config,
                          const ps_model_spec *spec)
{
    d->config = config;
    d->spec = spec;
    return ps_thread_start(&d->thread, "data", read_beside, d);
}

ps_err ps_data_sets_end(ps_data_sets *d)
{
    ps_thread_join(&d->thread);
    return ps_err_restore(&d->result);
}

void ps_data_sets_fini(ps_data_sets *d)
{
    ps_thread_join(&d->thread);
    ps_dataset_fini(&d->train);
    ps_dataset_fini(&d->test);
    ps_preprocessing_destroy(&d->state);
}

void ps_data_sets_log(const ps_data_sets *d, const ps_config *config)
{
    PS_INFO("data", "kind=%s train=%lld test=%lld",
            ps_word_name(ps_data_words, (int)config->data.kind), (long long)d->train.n,
            (long long)d->test.n);
    ps_dataset_log(&d->train, "data.train");
    ps_dataset_log(&d->test, "data.test");
    if (d->test.n == 0 && !ps_data_is_made(config->data.kind))
        PS_WARN("data", "no test set: data.test is not given, and data.path has no files "
                        "of the usual names; nothing is evaluated");
}
