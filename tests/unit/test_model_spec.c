/* Models from YAML: shapes, names and counts against PyTorch's, and what is refused. */
#include "model_spec.h"

#include "check.h"

/* A configuration that has only a model. */
typedef struct fixture {
    ps_config cfg;
    ps_model_spec spec;
} fixture;

static ps_err build(fixture *f, const char *layers, int n_input, const int64_t *input,
                    const char *loss)
{
    char text[4096];
    static char file[] = "a.yaml";
    snprintf(text, sizeof text, "model:\n  layers:\n%s", layers);
    *f = (fixture){.cfg = {.file = file}};
    f->cfg.model.input.n = n_input;
    memcpy(f->cfg.model.input.v, input, (size_t)n_input * sizeof *input);
    f->cfg.model.dropout = true;
    int kind = -1;
    assert_true(ps_word_find(ps_loss_words, loss, &kind));
    f->cfg.model.loss = (ps_loss_kind)kind;
    assert_ok(ps_yaml_parse(file, text, strlen(text), &f->cfg.tree));
    return ps_model_spec_init(&f->spec, &f->cfg);
}

static void tear(fixture *f)
{
    ps_model_spec_fini(&f->spec);
    ps_yaml_destroy(&f->cfg.tree);
}

static const int64_t IMAGE[] = {1, 28, 28}, COLOUR[] = {3, 32, 32}, FEATURES[] = {20};

static void assert_refused(const char *layers, const char *loss, ps_err code,
                           const char *message)
{
    fixture f;
    assert_error(build(&f, layers, 3, IMAGE, loss), code, message);
    tear(&f);
}

static void assert_config_error(const char *layers, const char *want)
{
    assert_refused(layers, "mse", PS_ERR_CONFIG, want);
}

static void assert_shape_error(const char *layers, const char *want)
{
    assert_refused(layers, "mse", PS_ERR_SHAPE, want);
}

static void assert_dims(const ps_dims *dims, const char *text)
{
    char out[PS_DIMS_TEXT];
    assert_string_equal(ps_dims_text(dims, out), text);
}

static void load(fixture *f, const char *file)
{
    assert_ok(ps_config_load(&f->cfg, file, NULL, 0));
    assert_ok(ps_model_spec_init(&f->spec, &f->cfg));
}

static void unload(fixture *f)
{
    ps_model_spec_fini(&f->spec);
    ps_config_fini(&f->cfg);
}

/* Parameters as sum(p.numel() for p in model.parameters()) of the same model in PyTorch:
 * BasicNet's is in PyTorch's example, ResNet-18's and VGG-11's are torchvision's with
 * other heads: 11,689,512 - 513,000 (fc of 1,000) + 5,130 (fc of 10); the CIFAR stem has
 * 64*3*9 instead of 64*3*49 weights; VGG-11's features have 9,220,480. */
TEST(shipped_models_have_pytorchs_parameter_counts)
{
    const struct {
        const char *file;
        uint64_t n_params;
        int n_buffers;
    } models[] = {
        {"configs/mnist-basicnet.yaml", 1199882, 0},
        {"configs/digits-basicnet.yaml", 320 + 18496 + 256 * 128 + 128 + 1290, 0},
        {"configs/digits-mlp.yaml", 64 * 64 + 64 + 650, 0},
        {"configs/mnist-lenet5.yaml", 61706, 0},
        {"configs/resnet18-stl10.yaml", 11689512 - 513000 + 5130, 60},
        {"configs/resnet18-cifar10.yaml", 11689512 - 513000 + 5130 - 64 * 3 * 40, 60},
        {"configs/synthetic-vgg11.yaml", 9220480 + 5130, 0},
        {"configs/vgg11-cifar10.yaml", 9220480 + 2 * (512 * 512 + 512) + 5130, 0},
        {"configs/vgg11-stl10.yaml",
         9220480 + 4608 * 1024 + 1024 + 1024 * 1024 + 1024 + 10250, 0},
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        fixture f;
        load(&f, models[i].file);
        assert_int_equal(f.spec.table.n_params, models[i].n_params);
        assert_int_equal(f.spec.table.n_buffers, models[i].n_buffers);
        assert_int_equal(f.spec.n_outputs, 10);
        unload(&f);
    }
}

TEST(basicnet_has_pytorchs_names_and_shapes)
{
    const char *const names[] = {"conv1.weight", "conv1.bias", "conv2.weight",
                                 "conv2.bias",   "fc1.weight", "fc1.bias",
                                 "fc2.weight",   "fc2.bias"};
    const char *const shapes[] = {"(32, 1, 3, 3)", "(32)",  "(64, 32, 3, 3)", "(64)",
                                  "(128, 9216)",   "(128)", "(10, 128)",      "(10)"};
    const int64_t fan_in[] = {9, 9, 288, 288, 9216, 9216, 128, 128};
    fixture f;
    load(&f, "configs/mnist-basicnet.yaml");
    assert_int_equal(f.spec.table.n_tensors, 8);
    uint64_t at = 0;
    for (int i = 0; i < 8; i++) {
        const ps_tensor *t = &f.spec.table.tensors[i];
        assert_string_equal(t->name, names[i]);
        assert_dims(&t->dims, shapes[i]);
        assert_int_equal(t->fan_in, fan_in[i]);
        assert_int_equal(t->role, i % 2 ? PS_TENSOR_BIAS : PS_TENSOR_WEIGHT);
        assert_int_equal(t->offset % PS_TENSOR_ALIGN, 0);
        assert_true(t->offset >= at && t->offset < at + PS_TENSOR_ALIGN);
        at = t->offset + t->count;
    }
    assert_int_equal(f.spec.table.arena_count % PS_TENSOR_ALIGN, 0);
    assert_ptr_equal(ps_tensor_table_find(&f.spec.table, "fc1.bias"),
                     &f.spec.table.tensors[5]);
    assert_null(ps_tensor_table_find(&f.spec.table, "fc1"));
    unload(&f);
}

TEST(basicnet_shapes_are_inferred)
{
    const char *const outs[] = {"(32, 26, 26)", "(32, 26, 26)", "(64, 24, 24)",
                                "(64, 24, 24)", "(64, 12, 12)", "(64, 12, 12)",
                                "(9216)",       "(128)",        "(128)",
                                "(128)",        "(10)",         "(10)"};
    fixture f;
    load(&f, "configs/mnist-basicnet.yaml");
    assert_int_equal(f.spec.n_layers, 12);
    for (int i = 0; i < 12; i++) {
        assert_dims(&f.spec.layers[i].out, outs[i]);
        assert_int_equal(f.spec.layers[i].input[0], i - 1);
        assert_int_equal(f.spec.layers[i].n_consumers, 1);
    }
    assert_true(f.spec.layers[5].p == 0.25 && f.spec.layers[9].p == 0.5);
    assert_int_equal(f.spec.layers[9].dropout_id, 1);
    unload(&f);
}

TEST(dropout_can_be_turned_off)
{
    const char *set[] = {"model.dropout=false"};
    fixture f;
    assert_ok(ps_config_load(&f.cfg, "configs/mnist-basicnet.yaml", set, 1));
    assert_ok(ps_model_spec_init(&f.spec, &f.cfg));
    assert_true(f.spec.layers[5].p == 0.0 && f.spec.layers[9].p == 0.0);
    unload(&f);
}

TEST(resnet_has_torchvisions_state_dict)
{
    fixture f;
    load(&f, "configs/resnet18-stl10.yaml");
    const struct {
        const char *name, *shape;
    } wanted[] = {
        {"conv1.weight", "(64, 3, 7, 7)"},
        {"bn1.running_var", "(64)"},
        {"layer1.0.conv1.weight", "(64, 64, 3, 3)"},
        {"layer2.0.conv1.weight", "(128, 64, 3, 3)"},
        {"layer2.0.downsample.0.weight", "(128, 64, 1, 1)"},
        {"layer2.0.downsample.1.running_mean", "(128)"},
        {"layer4.1.bn2.num_batches_tracked", "()"},
        {"fc.weight", "(10, 512)"},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        const ps_tensor *t = ps_tensor_table_find(&f.spec.table, wanted[i].name);
        if (!t) fail_msg("%s is missing", wanted[i].name);
        assert_dims(&t->dims, wanted[i].shape);
    }
    assert_int_equal(f.spec.table.n_tensors, 62); // len(list(resnet18().parameters()))
    assert_null(ps_tensor_table_find(&f.spec.table, "conv1.bias"));
    unload(&f);
}

TEST(a_residual_block_adds_body_and_input)
{
    fixture f;
    assert_ok(build(&f,
                    "    - conv2d: {out: 4, kernel: 1}\n"
                    "    - residual:\n"
                    "        name: block\n"
                    "        body: [relu, {conv2d: {name: c, out: 4, kernel: 3, "
                    "padding: 1}}]\n"
                    "    - avg_pool2d: global\n"
                    "    - flatten\n",
                    3, COLOUR, "cross_entropy"));
    const ps_layer *add = &f.spec.layers[3];
    assert_int_equal(add->kind, PS_LAYER_ADD);
    assert_int_equal(add->input[0], 2);
    assert_int_equal(add->input[1], 0);
    assert_int_equal(f.spec.layers[0].n_consumers, 2); // relu and the addition
    assert_string_equal(f.spec.table.tensors[0].name, "0.weight");
    assert_string_equal(f.spec.table.tensors[2].name, "block.c.weight");
    assert_dims(&f.spec.layers[4].out, "(4, 1, 1)");
    assert_int_equal(f.spec.layers[4].kernel[0], 32);
    assert_int_equal(f.spec.n_outputs, 4);
    tear(&f);
}

/* floor((n + 2p - k) / s) + 1 for uneven sizes, and rectangular kernels. */
TEST(windows_follow_pytorchs_arithmetic)
{
    fixture f;
    assert_ok(build(&f,
                    "    - conv2d: {out: 2, kernel: [3, 5], stride: [2, 3], padding: "
                    "[1, 0]}\n"
                    "    - max_pool2d: {kernel: 3, stride: 2, padding: 1}\n"
                    "    - avg_pool2d: [2, 1]\n"
                    "    - flatten\n"
                    "    - linear: {out: 7, bias: false}\n",
                    3, IMAGE, "mse"));
    assert_dims(&f.spec.layers[0].out, "(2, 14, 8)"); // (30-3)/2+1, (28-5)/3+1
    assert_dims(&f.spec.layers[1].out, "(2, 7, 4)");
    assert_dims(&f.spec.layers[2].out, "(2, 3, 4)");
    assert_int_equal(f.spec.layers[4].bias, PS_NONE);
    assert_int_equal(f.spec.table.n_tensors, 3);
    tear(&f);
}

TEST(features_need_no_image)
{
    fixture f;
    assert_ok(build(&f, "    - linear: 5\n    - sigmoid\n", 1, FEATURES, "mse"));
    assert_dims(&f.spec.table.tensors[0].dims, "(5, 20)");
    tear(&f);
    assert_error(build(&f, "    - conv2d: {out: 5, kernel: 1}\n", 1, FEATURES, "mse"),
                 PS_ERR_SHAPE, "input is (20)");
    tear(&f);
}

TEST(errors_name_line_layer_and_shapes)
{
    assert_refused("    - linear: {name: fc1, out: 128}\n", "cross_entropy", PS_ERR_SHAPE,
                   "a.yaml:3: linear fc1: input is (1, 28, 28), put a flatten before it");
    assert_shape_error(
        "    - relu\n    - conv2d: {name: c, out: 1, kernel: 31, padding: 1}\n",
        "a.yaml:4: conv2d c: kernel (31, 31) is larger");
    assert_shape_error("    - max_pool2d: {kernel: 2, padding: 2}\n",
                       "padding 2 is more than half of the kernel 2");
    assert_shape_error(
        "    - residual:\n        name: r\n"
        "        body: [{conv2d: {out: 3, kernel: 3}}]\n",
        "residual r: body gives (3, 26, 26), the identity gives (1, 28, 28)");
    assert_shape_error("    - flatten\n    - linear: {out: 16777216}\n",
                       "weight (16777216, 784) has more than 2147483647 elements");
    assert_shape_error("    - conv2d: {out: 16777216, kernel: 1}\n",
                       "output (16777216, 28, 28) has more than");
}

TEST(groups_and_dilation_are_checked)
{
    const char *wide = "    - conv2d: {name: c, out: 6, kernel: 3, dilation: 14}\n";
    const char *uneven = "    - conv2d: {name: a, out: 6, kernel: 1}\n"
                         "    - conv2d: {name: c, out: 8, kernel: 1, groups: 4}\n";
    assert_shape_error(wide,
                       "a.yaml:3: conv2d c: kernel (3, 3) with dilation is larger than");
    assert_shape_error(
        uneven, "a.yaml:4: conv2d c: groups 4 does not divide the 6 channels of the "
                "input");
    assert_shape_error("    - conv2d: {name: a, out: 6, kernel: 1}\n"
                       "    - conv2d: {name: c, out: 8, kernel: 1, groups: 3}\n",
                       "the 8 channels of the output");
    assert_config_error("    - conv2d: {out: 6, kernel: 1, groups: 0}\n", "groups");
    assert_config_error("    - conv2d: {out: 6, kernel: 1, dilation: 0}\n", "dilation");
    assert_shape_error("    - conv2d: {out: 6, kernel: 4096, dilation: 4096}\n",
                       "with dilation");
    assert_config_error("    - max_pool2d: {kernel: 2, dilation: 2}\n",
                        "setting of max_pool2d \"dilation\" is not known");
    assert_shape_error("    - conv2d: {name: a, out: 6, kernel: 1}\n"
                       "    - group_norm: {name: g, groups: 4}\n",
                       "a.yaml:4: group_norm g: groups 4 does not divide the 6 channels");
    assert_config_error("    - group_norm\n", "group_norm: \"groups\" is missing");
    assert_shape_error("    - layer_norm\n", "put a flatten before it");
    assert_config_error("    - leaky_relu: -0.1\n", "-0.1 is not in");
    assert_config_error("    - elu: {alpha: nan}\n", "alpha");
    assert_config_error("    - gelu: 1\n", "not a value");
}

/* torchvision's mobilenet_v2, squeezenet1_1 and resnet50. */
TEST(models_of_torchvision)
{
    fixture f;
    load(&f, "configs/synthetic-mobilenetv2.yaml");
    assert_int_equal(f.spec.table.n_params, 3504872);
    assert_int_equal(f.spec.table.n_tensors, 158);
    assert_int_equal(f.spec.table.n_buffers, 3 * 52);
    unload(&f);
    load(&f, "configs/synthetic-squeezenet.yaml");
    assert_int_equal(f.spec.table.n_params, 1235496);
    assert_int_equal(f.spec.table.n_tensors, 52);
    unload(&f);
    load(&f, "configs/synthetic-resnet50.yaml");
    assert_int_equal(f.spec.table.n_params, 25557032);
    assert_int_equal(f.spec.table.n_tensors, 161);
    assert_int_equal(f.spec.table.n_buffers, 3 * 53);
    unload(&f);
}

TEST(unknown_layers_and_settings_get_a_hint)
{
    assert_config_error(
        "    - conv2: {out: 3, kernel: 3}\n",
        "a.yaml:3: layer \"conv2\" is not known; did you mean \"conv2d\"?");
    assert_config_error(
        "    - conv2d: {out: 3, kernal: 3}\n",
        "setting of conv2d \"kernal\" is not known; did you mean \"kernel\"?");
    assert_config_error("    - relu: {out: 3}\n", "setting of relu");
    assert_config_error("    - conv2d: {out: 3}\n", "conv2d: \"kernel\" is missing");
    assert_config_error("    - linear\n", "linear: \"out\" is missing");
    assert_config_error("    - dropout: 1\n", "1 is not in [0, 1)");
    assert_config_error("    - relu: 3\n", "not a value");
    assert_config_error("    - conv2d: {out: 0, kernel: 3}\n", "out");
    assert_config_error("    - conv2d: {out: x, kernel: 3}\n", "out");
    assert_config_error("    - max_pool2d: [2, 2, 2]\n", "[height, width]");
    assert_config_error("    - {relu: , tanh: }\n", "a layer is a kind");
    assert_config_error("    - [relu]\n", "a layer is a kind");
    assert_config_error("    - residual: {body: []}\n", "body is empty");
}

TEST(new_shapes_follow_pytorch)
{
    fixture f;
    assert_ok(build(&f,
                    "    - adaptive_avg_pool2d: [5, 7]\n"
                    "    - upsample: {scale: [2, 3]}\n"
                    "    - adaptive_max_pool2d: {size: [5, 3]}\n"
                    "    - concat:\n"
                    "        name: mixed\n"
                    "        branches:\n"
                    "          - [conv2d: {name: a, out: 4, kernel: 1}]\n"
                    "          - []\n"
                    "          - [conv2d: {out: 2, kernel: 3, padding: 1}]\n"
                    "    - upsample: {size: [4, 9], mode: bilinear}\n"
                    "    - adaptive_max_pool2d: [3, 20]\n"
                    "    - flatten\n    - linear: {name: fc, out: 10}\n",
                    3, COLOUR, "cross_entropy"));
    assert_dims(&f.spec.layers[0].out, "(3, 5, 7)");
    assert_dims(&f.spec.layers[1].out, "(3, 10, 21)");
    assert_dims(&f.spec.layers[2].out, "(3, 5, 3)");
    assert_int_equal(f.spec.layers[2].kind, PS_LAYER_MAX_POOL2D);
    assert_string_equal(f.spec.table.tensors[0].name, "mixed.a.weight");
    assert_string_equal(f.spec.table.tensors[2].name, "mixed.0.weight");
    assert_dims(&f.spec.layers[6].out, "(9, 5, 3)"); // two layers join three branches
    assert_dims(&f.spec.layers[7].out, "(9, 4, 9)");
    assert_dims(&f.spec.layers[8].out, "(9, 3, 20)");
    assert_int_equal(f.spec.layers[8].kind, PS_LAYER_ADAPTIVE_MAX_POOL2D);
    tear(&f);
}

static void assert_tensor_names(const char *layers, const char *const *names)
{
    fixture f;
    assert_ok(build(&f, layers, 3, COLOUR, "cross_entropy"));
    int n = 0;
    for (; names[n]; n++)
        assert_string_equal(f.spec.table.tensors[n].name, names[n]);
    assert_int_equal(f.spec.table.n_tensors, n);
    tear(&f);
}

/* As PyTorch's, where a block with two lists has a module for each. */
TEST(layers_without_names_at_the_same_place_of_two_lists_have_two_names)
{
    assert_tensor_names("    - concat:\n        branches:\n"
                        "          - [conv2d: {out: 4, kernel: 1, bias: false}]\n"
                        "          - [conv2d: {out: 2, kernel: 1, bias: false}]\n"
                        "          - [relu, residual: {body: [conv2d: {out: 3, kernel: "
                        "1, bias: false}]}]\n"
                        "    - flatten\n    - linear: {out: 10, bias: false}\n",
                        (const char *const[]){"0.0.weight", "0.branches.1.0.weight",
                                              "0.1.0.weight", "2.weight", NULL});
    assert_tensor_names("    - concat:\n        branches:\n"
                        "          - [conv2d: {out: 4, kernel: 1, bias: false}]\n"
                        "          - [conv2d: {out: 2, kernel: 1, bias: false}]\n"
                        "          - [conv2d: {name: x, out: 3, kernel: 1, bias: false}, "
                        "conv2d: {out: 3, "
                        "kernel: 1, bias: false}]\n"
                        "    - flatten\n    - linear: {out: 10, bias: false}\n",
                        (const char *const[]){"0.0.weight", "0.branches.1.0.weight",
                                              "0.x.weight", "0.1.weight", "2.weight",
                                              NULL});
    // A block within one list where the other has a layer: one would lie within the
    // other.
    assert_tensor_names(
        "    - residual:\n"
        "        name: r\n"
        "        body: [conv2d: {out: 4, kernel: 1, bias: false}]\n"
        "        shortcut:\n"
        "          - residual:\n"
        "              body: [conv2d: {out: 3, kernel: 1, bias: false}]\n"
        "              shortcut: [conv2d: {out: 3, kernel: 1, bias: false}]\n"
        "          - conv2d: {name: n, out: 4, kernel: 1, bias: false}\n"
        "    - flatten\n    - linear: {out: 10, bias: false}\n",
        (const char *const[]){"r.0.weight", "r.shortcut.0.0.weight",
                              "r.shortcut.0.shortcut.0.weight", "r.shortcut.n.weight",
                              "2.weight", NULL});
    // Names of the user's own stay as they are: twice is a mistake.
    assert_config_error("    - concat: [[conv2d: {name: a, out: 1, kernel: 1}], [conv2d: "
                        "{name: a, out: 1, kernel: 1}]]\n",
                        "the name \"0.a\" is that of the layer of line 3 already");
}

TEST(sequences_are_images_of_one_row)
{
    static const int64_t sequence[] = {3, 40};
    const char *layers =
        "    - conv1d: {name: a, out: 8, kernel: 5, stride: 2, groups: 1}\n"
        "    - batch_norm1d\n    - max_pool1d: 2\n"
        "    - adaptive_avg_pool1d: 4\n    - flatten\n"
        "    - linear: {name: fc, out: 10}\n";
    fixture f;
    assert_ok(build(&f, layers, 2, sequence, "cross_entropy"));
    assert_dims(&f.spec.table.tensors[0].dims, "(8, 3, 5)");
    assert_dims(&f.spec.layers[0].out, "(8, 1, 18)");
    assert_dims(&f.spec.layers[2].out, "(8, 1, 9)");
    assert_dims(&f.spec.layers[4].out, "(32)");
    tear(&f);
    assert_error(build(&f, "    - conv2d: {out: 8, kernel: 1}\n", 2, sequence, "mse"),
                 PS_ERR_SHAPE, "a.yaml:3: conv2d 0: is for images");
    tear(&f);
}

TEST(mistakes_in_blocks_and_sizes_are_named)
{
    assert_config_error("    - adaptive_avg_pool2d\n", "\"size\" is missing");
    assert_config_error("    - upsample: {size: 3, scale: 2}\n",
                        "either a size or a scale");
    assert_config_error("    - upsample: {scale: 2, mode: cubic}\n",
                        "nearest or bilinear");
    assert_shape_error("    - upsample: 4096\n    - upsample: 4096\n",
                       "upsample: output (1, 114688, 114688) has more than");
    assert_shape_error("    - concat: [[], [flatten]]\n",
                       "branches give (1, 28, 28) and (784)");
    assert_shape_error("    - concat: [[], [max_pool2d: 2]]\n",
                       "(1, 28, 28) and (1, 14, 14)");
    assert_config_error("    - concat: [[relu]]\n", "two or more");
    assert_config_error("    - concat: [relu, tanh]\n", "each branch is a list");
    assert_shape_error("    - conv1d: {out: 3, kernel: 3}\n", "[channels, length]");
    assert_config_error("    - conv1d: {out: 3, kernel: [1, 3]}\n",
                        "has to be one number");
}

TEST(names_are_unique)
{
    assert_config_error(
        "    - flatten\n    - linear: {name: a, out: 3}\n"
        "    - linear: {name: a, out: 3}\n",
        "a.yaml:5: linear: the name \"a\" is that of the layer of line 4");
    assert_config_error("    - flatten\n    - linear: {name: \"2\", out: 3}\n"
                        "    - linear: {out: 3}\n",
                        "the name \"2\"");
    // In PyTorch l1.weight would be a tensor and a module.
    static const char WITHIN[] =
        "a.yaml:5: linear: of the names \"%s\" and \"%s\" (line 4) one lies within";
    char want[128];
    snprintf(want, sizeof want, WITHIN, "l1.weight", "l1");
    assert_config_error("    - flatten\n    - linear: {name: l1, out: 3}\n"
                        "    - linear: {name: l1.weight, out: 3}\n",
                        want);
    snprintf(want, sizeof want, WITHIN, "l1", "l1.weight");
    assert_config_error("    - flatten\n    - linear: {name: l1.weight, out: 3}\n"
                        "    - linear: {name: l1, out: 3}\n",
                        want);
    assert_config_error("    - flatten\n    - residual: {name: r, body: [linear: 784]}\n"
                        "    - linear: {name: r, out: 3}\n",
                        "\"r\" and \"r.0\" (line 4)");
}

TEST(the_loss_fits_the_last_layer)
{
    const char *logits = "    - flatten\n    - linear: 10\n";
    const char *logs = "    - flatten\n    - linear: 10\n    - log_softmax\n";
    assert_refused(logits, "nll", PS_ERR_CONFIG, "end the layers with log_softmax");
    assert_refused(logs, "cross_entropy", PS_ERR_CONFIG, "leave log_softmax out");
    assert_refused("    - conv2d: {out: 10, kernel: 28}\n", "cross_entropy", PS_ERR_SHAPE,
                   "output is (10, 1, 1)");
    assert_config_error("    - flatten\n", "no layer has parameters");
    fixture f;
    assert_ok(build(&f, logs, 3, IMAGE, "nll"));
    tear(&f);
}

TEST(the_input_is_checked)
{
    const int64_t four[] = {1, 2, 28, 28}, zero[] = {1, 0, 28},
                  huge[] = {1 << 24, 1 << 24, 3};
    const char *layers = "    - flatten\n    - linear: 10\n";
    fixture f;
    assert_int_equal(build(&f, layers, 4, four, "mse"), PS_ERR_CONFIG);
    tear(&f);
    assert_int_equal(build(&f, layers, 3, zero, "mse"), PS_ERR_CONFIG);
    tear(&f);
    assert_error(build(&f, layers, 3, huge, "mse"), PS_ERR_CONFIG, "model.input");
    tear(&f);
}

TEST(layers_are_bounded)
{
    fixture f = {.cfg = {.model = {.loss = PS_LOSS_MSE}}};
    size_t bytes = 0, n = 5000;
    char *text = malloc(n * 8 + 64);
    bytes += (size_t)sprintf(text, "model: {layers: [flatten");
    for (size_t i = 0; i < n; i++)
        bytes += (size_t)sprintf(text + bytes, ", relu");
    bytes += (size_t)sprintf(text + bytes, "]}");
    f.cfg.model.input = (ps_int_list){1, {4}};
    assert_ok(ps_yaml_parse("a.yaml", text, bytes, &f.cfg.tree));
    assert_error(ps_model_spec_init(&f.spec, &f.cfg), PS_ERR_CONFIG,
                 "more than 4096 layers");
    tear(&f);
    free(text);
}

TEST(a_model_without_layers_is_refused)
{
    fixture f = {.cfg = {.model = {.loss = PS_LOSS_MSE}}};
    f.cfg.model.input = (ps_int_list){1, {4}};
    assert_error(ps_model_spec_init(&f.spec, &f.cfg), PS_ERR_CONFIG, "model.layers");
    tear(&f);
}
