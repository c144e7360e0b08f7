#include "loader.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "mixup.h"
#include "picture_reader.h"
#include "procstat.h"
#include "thread.h"
#include "transform.h"

enum { AUTO_THREADS_MAX = 8 }; // each has a batch of its own in memory

/* A slot's states: FREE -> FILLING -> READY -> HELD -> FREE. Only the threads take FREE
 * slots, and only the thread that took a slot touches its content while it is FILLING;
 * only the caller takes READY ones. */
typedef enum slot_state { FREE, FILLING, READY, HELD } slot_state;

typedef struct slot {
    ps_loaded loaded; // first member: a ps_loaded * is cast to its slot
    slot_state state;
    uint64_t request; // the call of ps_loader_epoch that it belongs to
    int64_t number;   // of the batch in its epoch
} slot;

/* A thread and what only it uses. */
typedef struct filler {
    ps_loader *loader;
    ps_transform transform;
    ps_picture_reader reader;
    uint8_t *sample; // a picture, a file's sample, a table's; NULL: samples are in memory
    ps_cell *cells;  // a table's line, where it is in a file
    float *last;     // the last sample of a batch that is mixed
    ps_thread thread;
} filler;

struct ps_loader {
    ps_loader_options o;
    int64_t sample_bytes, input_count;
    bool keeps_bytes;
    int n_slots, n_fillers;
    slot *slots;
    filler *fillers;

    pthread_mutex_t lock; // guards what follows, and the slots' states
    pthread_cond_t work;  // signals the threads: a request, a free slot, or stop
    pthread_cond_t ready; // signals the caller: a batch, the end, or an error
    bool stop;
    uint64_t request; // counts ps_loader_epoch's calls; 0: none yet
    uint64_t epoch_number;
    int64_t first, next; // first batch of the request; the caller's next batch
    int64_t n_batches;   // -1 until a thread has laid out the epoch
    ps_err_saved failed;
    uint64_t laid_out; // the request whose epoch is below; 0: none
    bool laying_out;   // a thread writes the epoch
    int n_filling;     // threads that read the epoch, without the lock
    int64_t number;    // of the batch that a thread takes next

    ps_epoch epoch;
    uint64_t epoch_of;

    bool has_sync;
};

/* Evaluation takes the samples in stored order, in batches of max_batch. */
static ps_err init_evaluation(ps_epoch *epoch, const ps_loader_options *o)
{
    memset(epoch, 0, sizeof *epoch);
    int64_t each = o->max_batch;
    epoch->n = o->n;
    epoch->n_batches = (o->n + each - 1) / each;
    size_t n = (size_t)o->n, n_batches = (size_t)epoch->n_batches;
    PS_TRY(PS_NEW(&epoch->indices, n, "indices"));
    PS_TRY(PS_NEW(&epoch->positions, n, "indices"));
    PS_TRY(PS_NEW(&epoch->batches, n_batches, "batches"));
    for (int64_t i = 0; i < o->n; i++) {
        epoch->indices[i] = o->begin + i;
        epoch->positions[i] = (uint32_t)(o->begin + i);
    }
    for (int64_t k = 0; k < epoch->n_batches; k++) {
        int64_t left = o->n - k * each, size = left < each ? left : each;
        epoch->batches[k] = (ps_sampler_batch){k * each, size, size};
    }
    return PS_OK;
}

static ps_err lay_out_epoch(ps_loader *l, uint64_t number)
{
    ps_epoch_fini(&l->epoch);
    return l->o.sampler != NULL ? ps_epoch_init(&l->epoch, l->o.sampler, number)
                                : init_evaluation(&l->epoch, &l->o);
}

static bool loader_mixes(const ps_loader *l)
{
    return l->o.sampler != NULL && l->o.config->data.mixup > 0;
}

static void copy_answer(const ps_dataset *set, int64_t index, ps_loaded *to, int64_t i)
{
    const int64_t n = set->n_targets;
    if (set->targets != NULL)
        memcpy(to->targets + i * n, set->targets + index * n,
               (size_t)n * sizeof *to->targets);
    else
        to->labels[i] = set->labels[index];
}

/* sample: as it is stored. */
static void copy_ids(const ps_dataset *set, int64_t columns, int64_t index,
                     const void *sample, ps_loaded *to, int64_t i)
{
    const char *ids = set->ids      ? (const char *)(set->ids + index * set->n_ids)
                      : columns > 0 ? ps_sample_file_more(set->stream, sample)
                                    : NULL;
    for (int64_t c = 0; c < columns; c++)
        memcpy(&to->ids[c * to->n + i], ids + c * (int64_t)sizeof *to->ids,
               sizeof *to->ids);
}

/* A stored sample: in memory, or read from its file. */
static ps_err stored_sample(filler *f, int64_t index, ps_draw_key key, const void **out)
{
    const ps_dataset *set = f->loader->o.dataset;
    *out = f->sample;
    if (set->files) {
        const char *path = set->files[index];
        const ps_err err = ps_picture_read(&f->reader, path, key, f->sample);
        if (err != PS_ERR_FORMAT || f->loader->o.mend) return err;
        return ps_err_set(err,
                          "%s: remove the file, or save it again; --check-data lists "
                          "all that cannot be read",
                          ps_err_message());
    }
    if (set->stream) return ps_sample_file_read(set->stream, index, f->sample);
    if (set->table) {
        const ps_cell *cells;
        PS_TRY(ps_table_row(set->table, index, f->cells, &cells));
        ps_preprocessing_row(set->preprocessing, cells, (float *)f->sample);
        return PS_OK;
    }
    *out = (const char *)set->values + index * f->loader->sample_bytes;
    return PS_OK;
}

/* A batch is mixed by the thread that filled it. */
static void mix_slot(filler *f, ps_loaded *loaded, ps_draw_key key)
{
    const ps_loader *l = f->loader;
    key.position = loaded->positions[0];
    const float lambda = ps_mixup_lambda(l->o.config->data.mixup, key);
    ps_mixup_samples(lambda, loaded->n, l->input_count, loaded->x, f->last);
    ps_mixup_targets(lambda, loaded->n, l->o.classes, loaded->labels, loaded->targets);
}

static ps_err fill_slot(filler *f, slot *s, int64_t number)
{
    ps_loader *l = f->loader;
    const ps_sampler_batch *batch = &l->epoch.batches[number];
    ps_draw_key key = {l->o.config->train.seed, (uint32_t)l->epoch_of, 0};
    const void *sample;
    s->loaded.n = batch->n;
    s->loaded.global_n = batch->global_n;
    if (l->o.dataset->stream)
        ps_sample_file_expect(l->o.dataset->stream, l->epoch.indices + batch->begin,
                              batch->n);
    for (int64_t i = 0; i < batch->n; i++) {
        int64_t index = l->epoch.indices[batch->begin + i];
        key.position = l->epoch.positions[batch->begin + i];
        s->loaded.positions[i] = key.position;
        copy_answer(l->o.dataset, index, &s->loaded, i);
        PS_TRY(stored_sample(f, index, key, &sample));
        copy_ids(l->o.dataset, l->o.columns, index, sample, &s->loaded, i);
        if (l->keeps_bytes)
            ps_transform_bytes(&f->transform, sample, key,
                               s->loaded.bytes + i * l->input_count);
        else
            ps_transform_apply(&f->transform, sample, key,
                               s->loaded.x + i * l->input_count);
    }
    if (loader_mixes(l) && batch->n > 0) mix_slot(f, &s->loaded, key);
    return PS_OK;
}

static slot *find_free(ps_loader *l)
{
    for (int i = 0; i < l->n_slots; i++)
        if (l->slots[i].state == FREE) return &l->slots[i];
    return NULL;
}

/* Starts a request: lays out the epoch without the lock. Called and left with the lock
 * held, while no thread fills a slot. */
static void take_request(ps_loader *l)
{
    const uint64_t mine = l->request, epoch = l->epoch_number;
    l->number = l->first;
    l->laying_out = true;
    pthread_mutex_unlock(&l->lock);
    l->epoch_of = epoch;
    ps_err err = lay_out_epoch(l, epoch);
    pthread_mutex_lock(&l->lock);
    l->laying_out = false;
    l->laid_out = mine;
    if (l->request == mine) {
        l->failed = ps_err_save(err);
        l->n_batches = l->epoch.n_batches; // 0 after a failure
        pthread_cond_broadcast(&l->ready);
    }
    pthread_cond_broadcast(&l->work);
}

/* Fills one batch without the lock. Called and left with the lock held. */
static void loader_prepare(filler *f, slot *s)
{
    ps_loader *l = f->loader;
    const uint64_t mine = l->laid_out;
    const int64_t number = l->number++;
    s->state = FILLING;
    s->request = mine;
    s->number = number;
    l->n_filling++;
    pthread_mutex_unlock(&l->lock);
    const ps_err err = fill_slot(f, s, number);
    pthread_mutex_lock(&l->lock);
    l->n_filling--;
    const bool wanted = mine == l->request;
    s->state = wanted && err == PS_OK ? READY : FREE;
    if (wanted && err != PS_OK && l->failed.code == PS_OK) l->failed = ps_err_save(err);
    pthread_cond_broadcast(&l->ready);
}

/* Whether there is a batch to fill, of the epoch that is laid out. */
static bool has_batch(const ps_loader *l)
{
    return l->laid_out != 0 && l->laid_out == l->request && l->failed.code == PS_OK &&
           l->number < l->epoch.n_batches;
}

static void *filler_thread(void *arg)
{
    filler *f = arg;
    ps_loader *l = f->loader;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        slot *s = find_free(l);
        const bool requested = l->laid_out != l->request;
        if (requested && !l->laying_out && l->n_filling == 0)
            take_request(l);
        else if (!l->laying_out && has_batch(l) && s != NULL)
            loader_prepare(f, s);
        else
            pthread_cond_wait(&l->work, &l->lock); // destroy ends this wait at the latest
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void init_sync(ps_loader *l)
{
    pthread_mutex_init(&l->lock, NULL);
    ps_cond_init(&l->work);
    ps_cond_init(&l->ready);
    l->has_sync = true;
}

/* Pictures are decoded by as many threads as the worker computes with. */
static int count_threads(const ps_loader_options *o)
{
    const int64_t wanted = o->config->data.threads, train = o->config->train.threads;
    if (wanted > 0) return (int)wanted;
    if (o->dataset->files == NULL) return 1;
    const int64_t cores = train > 0 ? train : ps_process_cores();
    return cores < 1 ? 1 : cores > AUTO_THREADS_MAX ? AUTO_THREADS_MAX : (int)cores;
}

static ps_err init_filler(ps_loader *l, filler *f)
{
    const ps_dataset *set = l->o.dataset;
    ps_config_data config = l->o.config->data;
    f->loader = l;
    if (set->files != NULL) {
        config.resize.n = 0; // ps_picture_reader does it
        ps_picture_reader_init(&f->reader, &l->o.config->data, &set->dims,
                               l->o.sampler != NULL);
        PS_TRY(ps_mem_zalloc(&f->sample, (size_t)l->sample_bytes, 1, "a picture"));
    }
    if (set->stream != NULL)
        PS_TRY(
            ps_mem_zalloc(&f->sample, ps_sample_file_room(set->stream), 1, "a sample"));
    if (set->table != NULL) {
        PS_TRY(ps_mem_zalloc(&f->sample, (size_t)l->sample_bytes, 1, "a sample"));
        PS_TRY(PS_NEW(&f->cells, (size_t)set->table->n_columns, "a line"));
    }
    if (loader_mixes(l)) PS_TRY(PS_NEW(&f->last, (size_t)l->input_count, "a sample"));
    return ps_transform_init(&f->transform, &config, &set->dims, set->is_float,
                             l->o.input, l->o.sampler != NULL, l->o.mend);
}

static ps_err init_fillers(ps_loader *l)
{
    int64_t channels;
    PS_TRY(PS_NEW(&l->fillers, (size_t)l->n_fillers, "threads"));
    for (int i = 0; i < l->n_fillers; i++)
        PS_TRY(init_filler(l, &l->fillers[i]));
    l->keeps_bytes = l->o.bytes && !loader_mixes(l) &&
                     ps_transform_byte_values(&l->fillers[0].transform, &channels);
    return PS_OK;
}

static ps_err start_fillers(ps_loader *l)
{
    for (int i = 0; i < l->n_fillers; i++) {
        filler *f = &l->fillers[i];
        PS_TRY(ps_thread_start(&f->thread, "loader", filler_thread, f));
    }
    return PS_OK;
}

static ps_err init_answers(const ps_loader *l, ps_loaded *loaded)
{
    const ps_dataset *set = l->o.dataset;
    const size_t n = (size_t)l->o.max_batch;
    const size_t each = loader_mixes(l) ? (size_t)l->o.classes : (size_t)set->n_targets;
    if (!set->targets) PS_TRY(PS_NEW(&loaded->labels, n, "labels"));
    if (!set->targets && !loader_mixes(l)) return PS_OK;
    return PS_NEW(&loaded->targets, n * each, "targets");
}

static ps_err init_slots(ps_loader *l)
{
    size_t n = (size_t)l->o.max_batch, x_bytes;
    if (__builtin_mul_overflow(n * sizeof(float), (size_t)l->input_count, &x_bytes))
        return ps_err_set(PS_ERR_ARG, "data.batch: a batch of %" PRId64 " is too large",
                          l->o.max_batch);
    PS_TRY(PS_NEW(&l->slots, (size_t)l->n_slots, "batches"));
    for (int i = 0; i < l->n_slots; i++) {
        ps_loaded *loaded = &l->slots[i].loaded;
        if (l->keeps_bytes)
            PS_TRY(ps_mem_zalloc(&loaded->bytes, x_bytes / sizeof(float), 1, "a batch"));
        else
            PS_TRY(ps_mem_zalloc_aligned(&loaded->x, x_bytes, "a batch"));
        PS_TRY(init_answers(l, loaded));
        if (l->o.columns > 0)
            PS_TRY(PS_NEW(&loaded->ids, n * (size_t)l->o.columns, "ids"));
        PS_TRY(PS_NEW(&loaded->positions, n, "positions"));
    }
    return PS_OK;
}

static ps_err loader_check(const ps_loader_options *o)
{
    if (o->max_batch < 1 || o->max_batch > INT32_MAX)
        return ps_err_set(PS_ERR_ARG, "a batch of %" PRId64 " samples", o->max_batch);
    if (o->sampler != NULL && (o->sampler->n_samples != o->dataset->n ||
                               o->sampler->batch[o->sampler->rank] > o->max_batch))
        return ps_err_set(PS_ERR_ARG,
                          "the sampler does not fit the dataset or the batch");
    if (o->sampler == NULL &&
        (o->begin < 0 || o->n < 0 || o->n > o->dataset->n - o->begin))
        return ps_err_set(PS_ERR_ARG, "evaluation reaches beyond the dataset");
    PS_TRY(ps_dataset_check_ids(o->dataset, o->columns));
    if (o->sampler != NULL && o->config->data.mixup > 0 &&
        (o->dataset->labels == NULL || o->dataset->n_classes > o->classes))
        return ps_err_set(PS_ERR_ARG, "data.mixup needs the model's classes");
    return PS_OK;
}

ps_err ps_loader_create(const ps_loader_options *o, ps_loader **out)
{
    *out = NULL;
    PS_TRY(loader_check(o));
    ps_loader *l = NULL;
    PS_TRY(PS_NEW(&l, 1, "the loader"));
    const ps_dataset *set = o->dataset;
    l->o = *o;
    l->n_batches = -1;
    l->input_count = ps_dims_count(o->input);
    l->sample_bytes =
        ps_dims_count(&set->dims) * (set->is_float ? (int64_t)sizeof(float) : 1);
    int64_t prefetch = o->config->data.prefetch;
    l->n_slots = prefetch < 1 ? 2 : prefetch > 1024 ? 1025 : (int)prefetch + 1;
    l->n_fillers = count_threads(o);
    const int64_t n_batches = (o->n + o->max_batch - 1) / o->max_batch;
    if (o->sampler == NULL && l->n_fillers > n_batches)
        l->n_fillers = n_batches > 0 ? (int)n_batches : 1;
    if (l->n_slots <= l->n_fillers) l->n_slots = l->n_fillers + 1;
    ps_err err = PS_OK;
    init_sync(l);
    PS_TRY_GOTO(init_fillers(l), err, fail);
    PS_TRY_GOTO(init_slots(l), err, fail);
    PS_TRY_GOTO(start_fillers(l), err, fail);
    *out = l;
    return PS_OK;
fail:
    ps_loader_destroy(&l);
    return err;
}

const float *ps_loader_byte_values(const ps_loader *l, int64_t *channels)
{
    const float *values = ps_transform_byte_values(&l->fillers[0].transform, channels);
    return l->keeps_bytes ? values : NULL;
}

ps_err ps_loader_epoch(ps_loader *l, uint64_t epoch, int64_t first)
{
    if (first < 0) return ps_err_set(PS_ERR_ARG, "there is no batch %" PRId64, first);
    pthread_mutex_lock(&l->lock);
    l->request++;
    l->epoch_number = epoch;
    l->first = l->next = first;
    l->n_batches = -1;
    l->failed.code = PS_OK;
    for (int i = 0; i < l->n_slots; i++)
        if (l->slots[i].state == READY) l->slots[i].state = FREE;
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->lock);
    return PS_OK;
}

/* The slot of the caller's next batch, if it is ready. */
static slot *find_ready(ps_loader *l)
{
    for (int i = 0; i < l->n_slots; i++) {
        slot *s = &l->slots[i];
        if (s->state == READY && s->request == l->request && s->number == l->next)
            return s;
    }
    return NULL;
}

/* Waits for the next batch (*found), the epoch's end (NULL) or an error. Called with the
 * lock held. */
static ps_err wait_for_batch(ps_loader *l, ps_deadline deadline, slot **found)
{
    *found = NULL;
    while (l->failed.code == PS_OK && (*found = find_ready(l)) == NULL) {
        if (l->n_batches >= 0 && l->next >= l->n_batches) return PS_OK;
        if (ps_deadline_passed(deadline))
            return ps_err_set(PS_ERR_TIMEOUT,
                              "batch %" PRId64 " of epoch %" PRIu64
                              " was not prepared in time",
                              l->next, l->epoch_number);
        ps_cond_wait(&l->ready, &l->lock, deadline);
    }
    return l->failed.code == PS_OK ? PS_OK : ps_err_restore(&l->failed);
}

ps_err ps_loader_next(ps_loader *l, ps_deadline deadline, ps_loaded **out)
{
    *out = NULL;
    pthread_mutex_lock(&l->lock);
    slot *s = NULL;
    ps_err err = l->request == 0
                     ? ps_err_set(PS_ERR_ARG, "ps_loader_next before ps_loader_epoch")
                     : wait_for_batch(l, deadline, &s);
    if (s != NULL) {
        s->state = HELD;
        l->next++;
        *out = &s->loaded;
    }
    pthread_mutex_unlock(&l->lock);
    return err;
}

bool ps_loader_ready(ps_loader *l)
{
    pthread_mutex_lock(&l->lock);
    bool ready = l->failed.code == PS_OK && find_ready(l) != NULL;
    pthread_mutex_unlock(&l->lock);
    return ready;
}

void ps_loader_release(ps_loader *l, ps_loaded *batch)
{
    if (batch == NULL) return;
    slot *s = (slot *)batch;
    pthread_mutex_lock(&l->lock);
    if (s->state == HELD) s->state = FREE;
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->lock);
}

static void stop_fillers(ps_loader *l)
{
    ps_cond_set(&l->work, &l->lock, &l->stop);
    for (int i = 0; i < l->n_fillers; i++) {
        filler *f = &l->fillers[i];
        ps_thread_join(&f->thread);
        ps_transform_fini(&f->transform);
        ps_picture_reader_fini(&f->reader);
        free(f->sample);
        free(f->cells);
        free(f->last);
    }
    free(l->fillers);
}

void ps_loader_destroy(ps_loader **loader)
{
    ps_loader *l = *loader;
    if (l == NULL) return;
    *loader = NULL;
    if (l->fillers != NULL) stop_fillers(l);
    if (l->has_sync) {
        pthread_cond_destroy(&l->ready);
        pthread_cond_destroy(&l->work);
        pthread_mutex_destroy(&l->lock);
    }
    for (int i = 0; i < l->n_slots && l->slots != NULL; i++) {
        free(l->slots[i].loaded.x);
        free(l->slots[i].loaded.bytes);
        free(l->slots[i].loaded.labels);
        free(l->slots[i].loaded.targets);
        free(l->slots[i].loaded.positions);
        free(l->slots[i].loaded.ids);
    }
    free(l->slots);
    ps_epoch_fini(&l->epoch);
    free(l);
}
