#include "describe.h"

#include <inttypes.h>
#include <string.h>

#include "device.h"
#include "layer_precision.h"
#include "model_spec.h"
#include "optimizer.h"
#include "readable.h"
#include "wrapped.h"

typedef struct counts {
    uint64_t params, outputs, products; // outputs: elements; products: multiply-adds
} counts;

static uint64_t elements_of(const ps_model_spec *spec, int tensor)
{
    return tensor == PS_NONE ? 0 : ps_tensor_table_at(&spec->table, tensor)->count;
}

static counts counts_of(const ps_model_spec *spec, const ps_layer *l)
{
    return (counts){.params = elements_of(spec, l->weight) + elements_of(spec, l->bias),
                    .outputs = (uint64_t)ps_dims_count(&l->out),
                    .products = ps_layer_products(spec, l)};
}

static const char *bytes_text(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 4; unit++)
        value /= 1024;
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}

enum { COLUMNS = 6, NUMBERS = 1 + 11 + 1 + 10 + 1 + 10 };

/* Of the columns of texts; of those of numbers it is fixed. */
typedef struct widths {
    int name, kind, shape;
    bool two_lines; // for each layer: its name and kind, then its figures
} widths;

static void widths_fit(int *width, const char *text)
{
    const int n = (int)strlen(text);
    if (n > *width) *width = n;
}

static widths widths_of(const ps_model_spec *spec, int columns)
{
    char shape[PS_DIMS_TEXT];
    widths w = {.name = (int)strlen("(input)"),
                .kind = (int)strlen("kind"),
                .shape = (int)strlen("output")};
    widths_fit(&w.shape, ps_dims_product_text(&spec->input, shape));
    for (int i = 0; i < spec->n_layers; i++) {
        widths_fit(&w.name, spec->layers[i].name);
        widths_fit(&w.kind, ps_layer_kind_name(spec->layers[i].written));
        widths_fit(&w.shape, ps_dims_product_text(&spec->layers[i].out, shape));
    }
    w.two_lines = columns > 0 && w.name + 2 + w.kind + 2 + w.shape + NUMBERS > columns;
    return w;
}

/* A sentence, or a line that may be longer than the terminal is wide. */
__attribute__((format(printf, 3, 4))) static void describe_say(FILE *out, int indent,
                                                               const char *fmt, ...)
{
    char text[640];
    PS_PRINT(text, fmt);
    ps_print_wrapped(out, ps_terminal_columns(out), 0, indent, text);
}

static void print_cells(FILE *out, const widths *w, const char *const cells[COLUMNS])
{
    if (w->two_lines)
        fprintf(out, "%-*s%s%s\n  ", cells[1][0] ? w->name : 0, cells[0],
                cells[1][0] ? "  " : "", cells[1]);
    else
        fprintf(out, "%-*s  %-*s  ", w->name, cells[0], w->kind, cells[1]);
    fprintf(out, "%-*s %11s %10s", w->shape, cells[2], cells[3], cells[4]);
    fprintf(out, cells[5][0] ? " %10s\n" : "%s\n", cells[5]);
}

static void print_line(FILE *out, const widths *w, const char *name, const char *kind,
                       const char *shape, const counts *c)
{
    char bytes[32], params[PS_READABLE_BYTES], products[PS_READABLE_BYTES] = "";
    if (c->products) ps_readable_count((double)c->products, products);
    ps_readable_whole((double)c->params, params);
    bytes_text(c->outputs * sizeof(float), bytes);
    const char *const cells[COLUMNS] = {name, kind, shape, params, bytes, products};
    print_cells(out, w, cells);
}

static void print_layers(const ps_model_spec *spec, FILE *out, counts *total)
{
    char shape[PS_DIMS_TEXT];
    const widths w = widths_of(spec, ps_terminal_columns(out));
    static const char *const heads[COLUMNS] = {"layer",      "kind",      "output",
                                               "parameters", "its bytes", "mult-adds"};
    const counts input = {.outputs = (uint64_t)ps_dims_count(&spec->input)};
    print_cells(out, &w, heads);
    print_line(out, &w, "(input)", "", ps_dims_product_text(&spec->input, shape), &input);
    for (int i = 0; i < spec->n_layers; i++) {
        const ps_layer *l = &spec->layers[i];
        const counts c = counts_of(spec, l);
        print_line(out, &w, l->name, ps_layer_kind_name(l->written),
                   ps_dims_product_text(&l->out, shape), &c);
        total->params += c.params;
        total->outputs += c.outputs;
        total->products += c.products;
    }
    print_line(out, &w, "(all)", "", "", total);
}

/* The kinds of layers in the model whose factors have 16 bits. */
static void narrow_kinds(const ps_model_spec *spec, char *out, size_t room)
{
    bool seen[PS_LAYER_WRITTEN_COUNT] = {false};
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < spec->n_layers; i++) {
        const ps_layer *l = &spec->layers[i];
        const ps_layer_kind kind = l->written;
        if (seen[kind] || ps_layer_precision_of(l->kind) != PS_MULTIPLIES_NARROW ||
            n >= room)
            continue;
        seen[kind] = true;
        n += (size_t)snprintf(out + n, room - n, "%s%s", n ? ", " : "",
                              ps_layer_kind_name(kind));
    }
}

/* What train.precision does, and how this machine computes it, or why it cannot. */
static void print_precision(const ps_config *config, const ps_model_spec *spec, FILE *out)
{
    const ps_config_train *train = &config->train;
    const ps_device_options options = ps_device_options_of(config, -1, 1);
    ps_device *device = NULL;
    char text[200];
    if (train->precision == PS_PRECISION_FLOAT32) return;
    narrow_kinds(spec, text, sizeof text);
    fputc('\n', out);
    describe_say(out, 2,
                 "In %s: the factors of products (%s). Sums, losses, logits and the "
                 "weights that are stepped are float32.",
                 ps_word_name(ps_precision_words, (int)train->precision), text);
    if (ps_device_open(train->device.kind, &options, &device) != PS_OK) {
        describe_say(out, 2, "Not on this machine: %s", ps_err_message());
        return;
    }
    ps_device_describe(device, text, sizeof text);
    describe_say(out, 2, "On this machine: %s", text);
    ps_device_close(&device);
}

typedef struct part {
    const char *what;
    uint64_t bytes;
    const char *note;
} part;

static void print_parts(const part *parts, size_t n, FILE *out)
{
    uint64_t sum = 0;
    char text[32];
    for (size_t i = 0; i < n; i++) {
        sum += parts[i].bytes;
        if (parts[i].bytes == 0) continue;
        const int at =
            fprintf(out, "  %-22s %11s", parts[i].what, bytes_text(parts[i].bytes, text));
        if (parts[i].note[0]) fputs("  ", out);
        ps_print_wrapped(out, ps_terminal_columns(out), at + 2, at + 2, parts[i].note);
    }
    fprintf(out, "  %-22s %11s\n", "together", bytes_text(sum, text));
}

/* Each thread of the loader has a batch, and data.prefetch are ready. */
static uint64_t batches_ahead(const ps_config *config)
{
    const ps_config_data *d = &config->data;
    return (uint64_t)(d->prefetch + (d->threads > 0 ? d->threads : 1));
}

/* Of one worker, and of all servers together; without servers a worker has the states. */
static void print_memory(const ps_config *config, const ps_model_spec *spec,
                         const counts *total, FILE *out)
{
    ps_optimizer optimizer;
    char batch_text[48], states_text[48], sent[32];
    const uint64_t batch = (uint64_t)ps_config_batch(config, 0);
    const uint64_t weights = total->params * sizeof(float),
                   trained = spec->table.n_params * sizeof(float),
                   outputs = total->outputs * sizeof(float) * batch,
                   input = (uint64_t)ps_dims_count(&spec->input) * sizeof(float) * batch;
    ps_optimizer_init(&optimizer, config);
    const uint64_t states = trained * (uint64_t)optimizer.n_states;
    const bool servers = config->exchange.name == PS_EXCHANGE_PS;
    const bool shared = !servers && config->exchange.name != PS_EXCHANGE_NONE;
    snprintf(batch_text, sizeof batch_text, "at most, for a batch of %" PRIu64, batch);
    snprintf(states_text, sizeof states_text, "%d of %s", optimizer.n_states,
             ps_word_name(ps_optimizer_words, (int)config->optimizer.name));
    const part worker[] = {
        {"weights", weights, ""},
        {"gradients", trained, spec->table.n_frozen ? "of those that are trained" : ""},
        {"layers' outputs", outputs, batch_text},
        {"their gradients", outputs, "likewise"},
        {"batches ahead", input * batches_ahead(config), "data.prefetch"},
        {"optimizer's states", servers ? 0 : states,
         shared ? "divided among the workers" : states_text}};
    fputc('\n', out);
    describe_say(out, 2,
                 "A worker's memory, beside the program (about 20 MiB) and the data:");
    print_parts(worker, sizeof worker / sizeof *worker, out);
    const part server[] = {{"weights", trained, ""},
                           {"gradients", trained, "of each worker that is on its way"},
                           {"optimizer's states", states, states_text}};
    if (servers) fputs("All servers together:\n", out);
    if (servers) print_parts(server, sizeof server / sizeof *server, out);
    describe_say(out, 2,
                 "A step of a worker sends %s and receives as much, without a codec.",
                 bytes_text(trained, sent));
}

/* A table's distinct ids of a step are sent once; their rows come, and gradients go. */
static void print_rows_traffic(const ps_row_spec *r, int n_tables, uint64_t samples,
                               FILE *out)
{
    char sent[32], received[32];
    const uint64_t ids = samples * (uint64_t)n_tables, row = r->dim * sizeof(float);
    describe_say(out, 4,
                 "  In a step a worker sends at most %s for them, and receives %s.",
                 bytes_text(ids * (sizeof(uint64_t) + row), sent),
                 bytes_text(ids * row, received));
}

static void print_rows(const ps_config *config, const ps_model_spec *spec, FILE *out)
{
    const uint64_t samples =
        (uint64_t)(ps_config_batch(config, 0) * config->train.accumulate);
    char bytes[32];
    for (int i = 0; i < spec->n_layers; i++) {
        const ps_layer *l = &spec->layers[i];
        const ps_row_spec *r = spec->rows + l->first_table;
        if (l->kind != PS_LAYER_EMBEDDING_BAG) continue;
        fputc('\n', out);
        describe_say(out, 2, "%s: %d table%s of rows on the servers, dim %u, %s, lr %g.",
                     l->name, l->n_tables, l->n_tables > 1 ? "s" : "", r->dim,
                     ps_word_name(ps_row_optimizer_words, (int)r->optimizer), r->lr);
        describe_say(out, 4, "  An id takes %s once a gradient has reached it.",
                     bytes_text(ps_row_spec_row_bytes(r), bytes));
        print_rows_traffic(r, l->n_tables, samples, out);
    }
}

ps_err ps_describe(const ps_config *config, FILE *out)
{
    ps_model_spec spec;
    ps_err err = ps_model_spec_init(&spec, config);
    if (err == PS_OK) {
        counts total = {0};
        print_layers(&spec, out, &total);
        print_memory(config, &spec, &total, out);
        print_rows(config, &spec, out);
    }
    if (err == PS_OK) print_precision(config, &spec, out);
    ps_model_spec_fini(&spec);
    return err;
}
