#include "export_torch.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "model_graph.h"
#include "model_spec.h"
#include "printable.h"

static const char HEADER[] =
    ", written by pstrain %s.\n"
    "\n"
    "    from safetensors.torch import load_file\n"
    "    model = Model()\n"
    "    model.load_state_dict(load_file(\"model.safetensors\"))\n"
    "    model.eval()\n"
    "\n"
    "Input: (N%s). Output: (N, %" PRId64 "); loss: %s.\n";

static const char OF_TABLES[] =
    "Inputs are not the table's cells: numbers are scaled (data.standardize), and\n"
    "categories become 1 or 0 (embedded ones: their places, behind all others; a\n"
    "missing cell is the next place, an unknown text the one after that), by\n"
    "\"preprocessing\" in the metadata of model.safetensors. Targets that are numbers\n"
    "are scaled, too.\n"
    "psrun --predict does the first, and undoes the second.\n";

static const char IMPORTS[] = "\"\"\"\n"
                              "import torch\n"
                              "from torch import nn\n"
                              "from torch.nn import functional as F\n"
                              "\n\n"
                              "class Model(nn.Module):\n"
                              "    def __init__(self):\n"
                              "        super().__init__()\n";

/* By _modules, where a name may also be that of a method. nn.Module's own train() fails
 * where a child is called "training". */
static const char ADD[] =
    "\n"
    "    def _add(self, path, module):\n"
    "        *folders, name = path.split(\".\")\n"
    "        at = self._modules\n"
    "        for folder in folders:\n"
    "            at = at.setdefault(folder, nn.Module())._modules\n"
    "        module._modules.update(at[name]._modules if name in at else {})\n"
    "        at[name] = module\n"
    "\n"
    "    def _at(self, path):\n"
    "        module = self\n"
    "        for name in path.split(\".\"):\n"
    "            module = module._modules[name]\n"
    "        return module\n"
    "\n"
    "    def train(self, mode=True):\n"
    "        for module in self.modules():\n"
    "            module.__dict__[\"training\"] = mode\n"
    "        return self\n";

static const char *const LOSSES[] = {[PS_LOSS_NLL] = "F.nll_loss",
                                     [PS_LOSS_CROSS_ENTROPY] = "F.cross_entropy",
                                     [PS_LOSS_MSE] = "F.mse_loss",
                                     [PS_LOSS_L1] = "F.l1_loss",
                                     [PS_LOSS_SMOOTH_L1] = "F.smooth_l1_loss",
                                     [PS_LOSS_BCE_WITH_LOGITS] =
                                         "F.binary_cross_entropy_with_logits"};

enum { SIZES_TEXT = 32 };

/* A text without control characters as Python writes it between double quotes. */
static void print_text(const char *text, FILE *out)
{
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            fprintf(out, "\\%c", *text);
        else
            fputc(*text, out);
}

/* Python's keywords, and what an nn.Module has already. */
static bool is_taken(const char *name)
{
    // clang-format off
    static const char *const words[] = {
        "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class",
        "continue", "def", "del", "elif", "else", "except", "finally", "for", "from",
        "global", "if", "import", "in", "is", "lambda", "nonlocal", "not", "or", "pass",
        "raise", "return", "try", "while", "with", "yield",
        "T_destination", "add_module", "apply", "bfloat16", "buffers", "call_super_init",
        "children", "compile", "cpu", "cuda", "double", "dump_patches", "eval",
        "extra_repr", "float", "forward", "get_buffer", "get_extra_state",
        "get_parameter", "get_submodule", "half", "ipu", "load_state_dict", "modules",
        "mtia", "named_buffers", "named_children", "named_modules", "named_parameters",
        "parameters", "requires_grad_", "set_extra_state", "set_submodule",
        "share_memory", "state_dict", "to", "to_empty", "train", "training", "type", "xpu",
        "zero_grad"};
    // clang-format on
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(name, words[i]) == 0) return true;
    return strncmp(name, "register_", strlen("register_")) == 0;
}

/* Whether a layer is the attribute self.NAME in Python. Names with a dot are not, nor
 * what stands before the dot in another layer's name. */
static bool is_attribute(const ps_model_spec *spec, const char *name)
{
    const size_t n = strlen(name);
    if (!isalpha((unsigned char)name[0]) || is_taken(name)) return false;
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '_') return false;
    for (int i = 0; i < spec->n_layers; i++) {
        const char *other = spec->layers[i].name;
        if (strncmp(other, name, n) == 0 && other[n] == '.') return false;
    }
    return true;
}

/* self.NAME, or what stands for it. */
static void print_place(const ps_model_spec *spec, const char *name, const char *method,
                        FILE *out)
{
    if (is_attribute(spec, name)) {
        fprintf(out, "self.%s", name);
        return;
    }
    fprintf(out, "self.%s(\"", method);
    print_text(name, out);
    fputc('"', out);
}

/* Sizes along the axes of PyTorch's layer: "(3, 3)", or "3" of a sequence. */
static const char *export_sizes(const ps_model_spec *spec, const int v[2],
                                char out[SIZES_TEXT])
{
    if (spec->sequences)
        snprintf(out, SIZES_TEXT, "%d", v[1]);
    else
        snprintf(out, SIZES_TEXT, "(%d, %d)", v[0], v[1]);
    return out;
}

/* Of a layer's or function's name: conv2d, conv1d. */
static int axes_of(const ps_model_spec *spec)
{
    return spec->sequences ? 1 : 2;
}

/* --- __init__ ---------------------------------------------------------------------- */

static void print_conv(const ps_model_spec *spec, const ps_layer *l, FILE *out)
{
    char kernel[SIZES_TEXT], stride[SIZES_TEXT], padding[SIZES_TEXT], text[SIZES_TEXT];
    fprintf(out, "nn.Conv%dd(%" PRId64 ", %" PRId64 ", %s, stride=%s, padding=%s",
            axes_of(spec), l->in.d[0], l->out.d[0], export_sizes(spec, l->kernel, kernel),
            export_sizes(spec, l->stride, stride),
            export_sizes(spec, l->padding, padding));
    if (l->dilation[0] > 1 || l->dilation[1] > 1)
        fprintf(out, ", dilation=%s", export_sizes(spec, l->dilation, text));
    if (l->groups > 1) fprintf(out, ", groups=%" PRId64, l->groups);
    fprintf(out, "%s)", l->bias == PS_NONE ? ", bias=False" : "");
}

static void print_module(const ps_model_spec *spec, const ps_layer *l, FILE *out)
{
    const char *bias = l->bias == PS_NONE ? ", bias=False" : "";
    switch (l->kind) {
    case PS_LAYER_CONV2D:
        print_conv(spec, l, out);
        break;
    case PS_LAYER_LINEAR:
        fprintf(out, "nn.Linear(%" PRId64 ", %" PRId64 "%s)", l->in.d[0], l->out.d[0],
                bias);
        break;
    case PS_LAYER_EMBEDDING: {
        const ps_dims *d = &ps_tensor_table_at(&spec->table, l->weight)->dims;
        fprintf(out, "nn.Embedding(%" PRId64 ", %" PRId64 ")", d->d[0], d->d[1]);
        break;
    }
    case PS_LAYER_GROUP_NORM:
        fprintf(out, "nn.GroupNorm(%" PRId64 ", %" PRId64 ", eps=%.9g)", l->groups,
                l->in.d[0], l->eps);
        break;
    case PS_LAYER_LAYER_NORM:
        fprintf(out, "nn.LayerNorm(%" PRId64 ", eps=%.9g)", l->in.d[0], l->eps);
        break;
    default:
        fprintf(out, "nn.BatchNorm%dd(%" PRId64 ", eps=%.9g, momentum=%.9g)",
                l->written == PS_LAYER_BATCH_NORM1D ? 1 : 2, l->in.d[0], l->eps,
                l->momentum);
    }
}

static void print_init(const ps_model_spec *spec, FILE *out)
{
    bool adds = false;
    for (int i = 0; i < spec->n_layers; i++) {
        const ps_layer *l = &spec->layers[i];
        if (!ps_layer_kind_has_tensors(l->kind)) continue;
        const bool attribute = is_attribute(spec, l->name);
        adds |= !attribute;
        fputs("        ", out);
        print_place(spec, l->name, "_add", out);
        fputs(attribute ? " = " : ", ", out);
        print_module(spec, l, out);
        fputs(attribute ? "\n" : ")\n", out);
    }
    if (adds) fputs(ADD, out);
}

/* --- forward ----------------------------------------------------------------------- */

enum { VALUE_TEXT = 24 };

/* A value that only the next layer reads is called x. */
static const char *export_value_of(const ps_model_spec *spec, int layer,
                                   char out[VALUE_TEXT])
{
    if (layer == PS_INPUT) return "inputs";
    const bool next =
        layer + 1 < spec->n_layers && spec->layers[layer + 1].input[0] == layer;
    if (layer + 1 == spec->n_layers || (next && spec->layers[layer].n_consumers == 1))
        return "x";
    snprintf(out, VALUE_TEXT, "x%d", layer);
    return out;
}

static void print_pool(const ps_model_spec *spec, const ps_layer *l, const char *kind,
                       const char *x, FILE *out)
{
    char kernel[SIZES_TEXT], stride[SIZES_TEXT], padding[SIZES_TEXT];
    fprintf(out, "F.%s%dd(%s, %s, stride=%s, padding=%s)", kind, axes_of(spec), x,
            export_sizes(spec, l->kernel, kernel), export_sizes(spec, l->stride, stride),
            export_sizes(spec, l->padding, padding));
}

static void print_interpolate(const ps_model_spec *spec, const ps_layer *l, const char *x,
                              FILE *out)
{
    const int size[2] = {(int)l->out.d[1], (int)l->out.d[2]};
    char text[SIZES_TEXT];
    if (l->kind != PS_LAYER_UPSAMPLE)
        fprintf(out, "F.adaptive_%s_pool%dd(%s, %s)",
                l->mode == PS_INTERPOLATE_MAX ? "max" : "avg", axes_of(spec), x,
                export_sizes(spec, size, text));
    else
        fprintf(out, "F.interpolate(%s, %s, mode=\"%s\")", x,
                export_sizes(spec, size, text),
                l->mode == PS_INTERPOLATE_BILINEAR ? "bilinear" : "nearest");
}

static void print_activation(const ps_layer *l, const char *x, FILE *out)
{
    static const char *const functions[] = {[PS_LAYER_RELU] = "torch.relu",
                                            [PS_LAYER_TANH] = "torch.tanh",
                                            [PS_LAYER_SIGMOID] = "torch.sigmoid",
                                            [PS_LAYER_RELU6] = "F.relu6",
                                            [PS_LAYER_LEAKY_RELU] = "F.leaky_relu",
                                            [PS_LAYER_ELU] = "F.elu",
                                            [PS_LAYER_SILU] = "F.silu",
                                            [PS_LAYER_GELU] = "F.gelu",
                                            [PS_LAYER_GELU_TANH] = "F.gelu"};
    fprintf(out, "%s(%s", functions[l->kind], x);
    if (l->kind == PS_LAYER_LEAKY_RELU || l->kind == PS_LAYER_ELU)
        fprintf(out, ", %.9g", l->alpha);
    fputs(l->kind == PS_LAYER_GELU_TANH ? ", approximate=\"tanh\")" : ")", out);
}

/* The last inputs choose rows, each below those of the columns before it; what is no row
 * becomes zeros. */
static void print_embedding(const ps_model_spec *spec, const ps_layer *l, const char *x,
                            FILE *out)
{
    const int64_t others = l->in.d[0] - spec->n_categories;
    int64_t first = 0;
    fprintf(out,
            "torch.cat((%s[:, :%" PRId64 "], F.embedding((%s[:, %" PRId64 ":] + "
            "%s.new_tensor([",
            x, others, x, others, x);
    for (int i = 0; i < spec->n_categories; first += spec->categories[i++])
        fprintf(out, "%s%" PRId64, i > 0 ? ", " : "", first);
    fprintf(out, "])).masked_fill(%s[:, %" PRId64 ":] >= %s.new_tensor([", x, others, x);
    for (int i = 0; i < spec->n_categories; i++)
        fprintf(out, "%s%" PRId64, i > 0 ? ", " : "", spec->categories[i]);
    fprintf(out, "]), %" PRId64 ").long(), F.pad(", first);
    print_place(spec, l->name, "_at", out);
    fprintf(out, is_attribute(spec, l->name) ? "" : ")");
    fputs(".weight, (0, 0, 0, 1))).flatten(1)), 1)", out);
}

static void print_call(const ps_model_spec *spec, const ps_layer *l, const char *x,
                       const char *y, FILE *out)
{
    if (l->kind == PS_LAYER_EMBEDDING) {
        print_embedding(spec, l, x, out);
        return;
    }
    if (ps_layer_kind_has_tensors(l->kind)) {
        print_place(spec, l->name, "_at", out);
        fprintf(out, is_attribute(spec, l->name) ? "(%s)" : ")(%s)", x);
        return;
    }
    if (ps_model_is_activation(l->kind)) {
        print_activation(l, x, out);
        return;
    }
    switch (l->kind) {
    case PS_LAYER_MAX_POOL2D:
        print_pool(spec, l, "max_pool", x, out);
        break;
    case PS_LAYER_AVG_POOL2D:
        print_pool(spec, l, "avg_pool", x, out);
        break;
    case PS_LAYER_ADAPTIVE_AVG_POOL2D:
    case PS_LAYER_ADAPTIVE_MAX_POOL2D:
    case PS_LAYER_UPSAMPLE:
        print_interpolate(spec, l, x, out);
        break;
    case PS_LAYER_CONCAT:
        fprintf(out, "torch.cat((%s, %s), dim=1)", x, y);
        break;
    case PS_LAYER_DROPOUT:
        fprintf(out, "F.dropout(%s, %.9g, self.training)", x, l->p);
        break;
    case PS_LAYER_FLATTEN:
        fprintf(out, "torch.flatten(%s, 1)", x);
        break;
    case PS_LAYER_ADD:
        fprintf(out, "%s + %s", x, y);
        break;
    case PS_LAYER_LOG_SOFTMAX:
        fprintf(out, "F.log_softmax(%s, dim=1)", x);
        break;
    default:
        break; // modules
    }
}

static void print_forward(const ps_model_spec *spec, FILE *out)
{
    char x[VALUE_TEXT], y[VALUE_TEXT], result[VALUE_TEXT];
    fputs("\n    def forward(self, inputs):\n", out);
    for (int i = 0; i < spec->n_layers; i++) {
        const ps_layer *l = &spec->layers[i];
        fprintf(out, "        %s = ", export_value_of(spec, i, result));
        print_call(spec, l, export_value_of(spec, l->input[0], x),
                   l->n_inputs > 1 ? export_value_of(spec, l->input[1], y) : "", out);
        fputc('\n', out);
    }
    fputs("        return x\n", out);
}

/* What a sample goes through before the model gets it: whoever feeds stored samples gets
 * wrong outputs, without a word. */
static void print_samples(const ps_config_data *d, FILE *out)
{
    if (ps_data_is_made(d->kind)) return;
    if (d->kind == PS_DATA_CSV) {
        if (d->target[0]) fputs(OF_TABLES, out);
        return;
    }
    if (d->kind == PS_DATA_IMAGE_FOLDER || d->resize.n > 0)
        fputs("Pictures are first resized and cropped (data.resize, data.crop).\n", out);
    fprintf(out, "Samples of uint8 are multiplied by %.9g (data.scale).\n", d->scale);
    if (d->normalize.n == 0) return;
    fputs("Then x becomes (x - mean) / deviation, of data.normalize:\n[", out);
    for (int i = 0; i < d->normalize.n; i++)
        fprintf(out, "%s%.9g", i > 0 ? ", " : "", d->normalize.v[i]);
    fputs("].\n", out);
}

static ps_err export_check(const ps_model_spec *spec)
{
    for (int i = 0; i < spec->n_layers; i++) {
        const ps_layer *l = &spec->layers[i];
        if (l->kind == PS_LAYER_EMBEDDING_BAG || l->kind == PS_LAYER_INTERACTION)
            return ps_err_set(PS_ERR_UNSUPPORTED,
                              "--export-torch: %s (line %d) cannot be written: "
                              "pstrain.EmbeddingBag is what PyTorch's models take",
                              ps_layer_kind_name(l->kind), l->line);
    }
    return PS_OK;
}

ps_err ps_export_torch(const ps_config *config, FILE *out)
{
    ps_model_spec spec;
    ps_err err = ps_model_spec_init(&spec, config);
    if (err == PS_OK) err = export_check(&spec);
    if (err == PS_OK) {
        char shape[PS_DIMS_TEXT] = "", name[256];
        ps_printable(config->job.name, name, sizeof name);
        for (int i = 0; i < spec.input.n; i++) {
            if (spec.sequences && i == 1) continue;
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), ", %" PRId64,
                     spec.input.d[i]);
        }
        fputs("\"\"\"The model ", out);
        print_text(name, out);
        fprintf(out, HEADER, PS_VERSION, shape, spec.n_outputs, LOSSES[spec.loss]);
        print_samples(&config->data, out);
        fputs(IMPORTS, out);
        print_init(&spec, out);
        print_forward(&spec, out);
    }
    ps_model_spec_fini(&spec);
    return err;
}
