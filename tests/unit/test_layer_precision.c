/* Which layers multiply factors of 16 bits, and which values stay float32. The lists are
 * torch.autocast's. test_device checks that both devices follow them. */
#include "layer_precision.h"

#include "check.h"
#include "model_spec.h"

TEST(products_alone_are_narrow)
{
    for (int kind = 0; kind < PS_LAYER_KIND_COUNT; kind++) {
        const bool product = kind == PS_LAYER_CONV2D || kind == PS_LAYER_LINEAR;
        const bool narrow = ps_layer_precision_of(kind) == PS_MULTIPLIES_NARROW;
        assert_int_equal(narrow, product);
    }
    assert_int_equal(ps_layer_precision_of(PS_LAYER_LOG_SOFTMAX), PS_READS_FLOAT32);
    assert_int_equal(ps_layer_precision_of(PS_LAYER_BATCH_NORM2D), PS_COMPUTES_FLOAT32);
}

/* stays[i]: whether value i of the graph stays float32. Value 0 is the input. */
static void check_edges(const char *loss, const char *layers, const bool *stays, int n)
{
    const char *const sets[] = {"model.input=[1, 4, 4]", loss, layers};
    ps_config cfg;
    ps_model_spec spec;
    ps_model_graph graph;
    if (ps_config_load(&cfg, NULL, sets, 3) != PS_OK ||
        ps_model_spec_init(&spec, &cfg) != PS_OK ||
        ps_model_graph_init(&graph, &spec) != PS_OK)
        fail_msg("%s", ps_err_message());
    assert_int_equal(graph.n_edges, n);
    for (int e = 0; e < n; e++)
        assert_int_equal(ps_edge_stays_float32(&graph, e), stays[e]);
    ps_model_graph_fini(&graph);
    ps_model_spec_fini(&spec);
    ps_config_fini(&cfg);
}

TEST(what_the_loss_reads_stays)
{
    const bool logits[] = {false, false, false, true};
    check_edges("model.loss=cross_entropy",
                "model.layers=[{conv2d: {name: a, out: 2, kernel: 3}}, flatten, "
                "{linear: {name: b, out: 3}}]",
                logits, 4);
    const bool softmax[] = {false, false, true, true};
    check_edges("model.loss=nll",
                "model.layers=[flatten, {linear: {name: b, out: 3}}, log_softmax]",
                softmax, 4);
}
