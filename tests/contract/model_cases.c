#include "model_cases.h"

#define NLL "log_softmax"

const model_case model_cases[] = {
    {"linear", "[7]", "cross_entropy", "{linear: {name: a, out: 6}}"},
    {"linear without bias, nll", "[7]", "nll",
     "{linear: {name: a, out: 6, bias: false}}, " NLL},
    {"mse", "[7]", "mse", "{linear: {name: a, out: 6}}, sigmoid"},
    {"log_softmax without nll", "[7]", "mse", "{linear: {name: a, out: 6}}, " NLL},
    {"label smoothing", "[7]", "cross_entropy train.label_smoothing=0.1",
     "{linear: {name: a, out: 6}}"},
    {"class weights, and a label that is ignored", "[7]",
     "cross_entropy train.class_weights=[0.5,2,0,1,3,0.25] train.ignore_index=4",
     "{linear: {name: a, out: 6}}"},
    {"nll with weights, smoothing and a label that is ignored", "[7]",
     "nll train.class_weights=[0.5,2,1,1,3,0.25] train.ignore_index=0 "
     "train.label_smoothing=0.3",
     "{linear: {name: a, out: 6}}, " NLL},
    {"probabilities of classes", "[7]", "cross_entropy numbers",
     "{linear: {name: a, out: 6}}"},
    {"probabilities with weights and smoothing", "[7]",
     "cross_entropy numbers train.class_weights=[0.5,2,0,1,3,0.25] "
     "train.label_smoothing=0.2",
     "{linear: {name: a, out: 6}}"},
    {"mse of numbers", "[7]", "mse numbers", "{linear: {name: a, out: 3}}"},
    {"l1 of numbers", "[7]", "l1 numbers", "{linear: {name: a, out: 3}}"},
    {"l1 of classes", "[7]", "l1", "{linear: {name: a, out: 3}}"},
    {"smooth_l1 of numbers", "[7]", "smooth_l1 numbers", "{linear: {name: a, out: 5}}"},
    {"smooth_l1 of one number", "[7]", "smooth_l1 numbers",
     "{linear: {name: a, out: 1}}"},
    {"bce_with_logits of several labels", "[3]", "bce_with_logits numbers",
     "{linear: {name: a, out: 9}}"},
    {"bce_with_logits of classes", "[7]", "bce_with_logits",
     "{linear: {name: a, out: 4}}"},
    {"linear twice with relu", "[9]", "cross_entropy",
     "{linear: {name: a, out: 33}}, relu, {linear: {name: b, out: 4}}"},
    {"tanh, sigmoid, relu in a row", "[9]", "cross_entropy",
     "{linear: {name: a, out: 20}}, tanh, sigmoid, relu, tanh, {linear: {name: b, out: "
     "4}}"},
    {"relu6, leaky_relu, elu in a row", "[9]", "cross_entropy",
     "{linear: {name: a, out: 20}}, relu6, {linear: {name: b, out: 20}}, leaky_relu, "
     "{elu: 0.5}, {linear: {name: c, out: 20}}, {leaky_relu: {negative_slope: 0.2}}, "
     "relu6, elu, {linear: {name: d, out: 4}}"},
    {"silu, gelu, gelu_tanh in a row", "[9]", "cross_entropy",
     "{linear: {name: a, out: 20}}, silu, gelu, gelu_tanh, {linear: {name: b, out: 20}}, "
     "tanh, gelu, sigmoid, {dropout: 0.3}, silu, relu, {linear: {name: c, out: 4}}"},
    {"activations of channels that fill no vector", "[3, 8, 7]", "cross_entropy",
     "{conv2d: {name: a, out: 21, kernel: 3}}, silu, {conv2d: {name: b, out: 20, kernel: "
     "1}}, {batch_norm2d: {name: n}}, gelu, {conv2d: {name: c, out: 18, kernel: 1}}, "
     "gelu_tanh, {dropout: 0.2}, {conv2d: {name: d, out: 17, kernel: 1}}, elu, "
     "{avg_pool2d: 2}, silu, {avg_pool2d: global}, flatten, {linear: {name: fc, out: "
     "5}}"},
    {"1 x 1 windows of odd numbers of channels", "[3, 8, 7]", "cross_entropy",
     "{conv2d: {name: a, out: 16, kernel: 3}}, tanh, {conv2d: {name: b, out: 17, kernel: "
     "1}}, tanh, {conv2d: {name: c, out: 33, kernel: 1}}, tanh, {conv2d: {name: d, out: "
     "5, "
     "kernel: 1}}, {avg_pool2d: global}, flatten, {linear: {name: fc, out: 5}}"},
    {"silu of a value with two readers", "[6, 6, 6]", "cross_entropy",
     "{conv2d: {name: a, out: 6, kernel: 1}}, {residual: {name: r, body: [silu, {conv2d: "
     "{name: b, out: 6, kernel: 3, padding: 1}}, gelu], shortcut: [relu6]}}, flatten, "
     "{linear: {name: fc, out: 5}}"},
    {"layer_norm", "[9]", "cross_entropy",
     "{layer_norm: {name: l}}, {linear: {name: a, out: 37}}, {layer_norm: {name: m, eps: "
     "0.01}}, gelu, {residual: {name: r, body: [{layer_norm: {name: n}}, {linear: {name: "
     "b, out: 37}}, tanh]}}, {layer_norm: {name: o}}, {linear: {name: c, out: 4}}"},
    {"group_norm", "[6, 9, 8]", "cross_entropy",
     "{group_norm: {name: i, groups: 3}}, {conv2d: {name: a, out: 24, kernel: 3}}, "
     "{group_norm: {name: g, groups: 4}}, relu, {conv2d: {name: b, out: 10, kernel: 1}}, "
     "{group_norm: {name: h, groups: 5, eps: 0.001}}, silu, {avg_pool2d: global}, "
     "flatten, {linear: {name: fc, out: 5}}"},
    {"group_norm of all channels, and of each", "[3, 8, 7]", "cross_entropy",
     "{conv2d: {name: a, out: 32, kernel: 3, padding: 1}}, {group_norm: {name: g, "
     "groups: "
     "1}}, {residual: {name: r, body: [{conv2d: {name: b, out: 32, kernel: 3, padding: "
     "1}}, {group_norm: {name: h, groups: 32}}, tanh]}}, {conv2d: {name: c, out: 21, "
     "kernel: 1}}, {group_norm: {name: j, groups: 7}}, {avg_pool2d: 2}, flatten, "
     "{linear: "
     "{name: fc, out: 5}}"},
    {"groups", "[6, 9, 8]", "cross_entropy",
     "{conv2d: {name: a, out: 12, kernel: 3, groups: 3}}, relu, {conv2d: {name: b, out: "
     "8, "
     "kernel: 3, padding: 1, stride: 2, groups: 2, bias: false}}, {batch_norm2d: {name: "
     "n}}, relu, {conv2d: {name: c, out: 32, kernel: 1, groups: 4}}, flatten, {linear: "
     "{name: fc, out: 5}}"},
    {"depthwise with large windows", "[3, 9, 8]", "cross_entropy",
     "{conv2d: {name: a, out: 20, kernel: 3, padding: 1}}, relu, {conv2d: {name: b, out: "
     "20, kernel: 5, padding: 2, groups: 20}}, silu, {conv2d: {name: c, out: 20, kernel: "
     "4, stride: 2, padding: 1, groups: 20, bias: false}}, flatten, {linear: {name: f, "
     "out: 5}}"},
    {"depthwise with a border and holes", "[16, 13, 12]", "cross_entropy",
     "{conv2d: {name: a, out: 16, kernel: 9, stride: 2, padding: 4, groups: 16}}, relu, "
     "{conv2d: {name: b, out: 16, kernel: 3, dilation: 2, padding: 2, groups: 16}}, "
     "relu, {avg_pool2d: global}, flatten, {linear: {name: f, out: 5}}"},
    {"groups of 16 and of 24 channels", "[3, 7, 7]", "cross_entropy",
     "{conv2d: {name: a, out: 64, kernel: 1}}, relu, {conv2d: {name: b, out: 96, kernel: "
     "3, padding: 1, groups: 4}}, relu, {conv2d: {name: c, out: 24, kernel: 3, groups: "
     "4}}, {avg_pool2d: global}, flatten, {linear: {name: fc, out: 5}}"},
    {"depthwise", "[5, 8, 9]", "cross_entropy",
     "{conv2d: {name: a, out: 5, kernel: 3, padding: 1, groups: 5}}, {conv2d: {name: b, "
     "out: 20, kernel: 1}}, {batch_norm2d: {name: n}}, relu6, {conv2d: {name: c, out: "
     "20, "
     "kernel: 3, stride: 2, padding: 1, groups: 20, bias: false}}, {batch_norm2d: {name: "
     "m}}, relu6, {conv2d: {name: d, out: 40, kernel: 5, padding: 2, groups: 20}}, "
     "{avg_pool2d: global}, flatten, {linear: {name: fc, out: 5}}"},
    {"depthwise of 16 channels", "[16, 8, 9]", "cross_entropy",
     "{conv2d: {name: a, out: 16, kernel: 3, padding: 1, groups: 16}}, relu, {conv2d: "
     "{name: b, out: 16, kernel: 3, padding: 2, dilation: 2, groups: 16}}, relu, "
     "{max_pool2d: 2}, flatten, {linear: {name: fc, out: 5}}"},
    {"dilation", "[3, 11, 12]", "cross_entropy",
     "{conv2d: {name: a, out: 16, kernel: 3, dilation: 2}}, relu, {conv2d: {name: b, "
     "out: "
     "16, kernel: 3, padding: 2, dilation: 2}}, relu, {conv2d: {name: c, out: 7, kernel: "
     "[2, 3], stride: 2, padding: [1, 3], dilation: [3, 2]}}, flatten, {linear: {name: "
     "fc, out: 5}}"},
    {"relu then sigmoid", "[9]", "cross_entropy",
     "{linear: {name: a, out: 20}}, relu, sigmoid, {linear: {name: b, out: 4}}"},
    {"convolutions of 3x3", "[1, 9, 9]", "cross_entropy",
     "{conv2d: {name: a, out: 32, kernel: 3}}, relu, {conv2d: {name: b, out: 16, kernel: "
     "3}}, relu, flatten, {linear: {name: fc, out: 5}}"},
    {"winograd's shapes", "[1, 26, 26]", "nll",
     "{conv2d: {name: a, out: 32, kernel: 3}}, relu, {conv2d: {name: b, out: 64, kernel: "
     "3}}, relu, {max_pool2d: 2}, flatten, {linear: {name: fc, out: 10}}, " NLL},
    {"channels that fill no vector", "[3, 11, 10]", "cross_entropy",
     "{conv2d: {name: a, out: 6, kernel: 5, padding: 2}}, tanh, {conv2d: {name: b, out: "
     "10, kernel: 3, stride: 2}}, sigmoid, {conv2d: {name: c, out: 20, kernel: 1}}, "
     "flatten, {linear: {name: fc, out: 5}}"},
    {"large windows with a stride and padding", "[3, 21, 24]", "cross_entropy",
     "{conv2d: {name: a, out: 8, kernel: 9, stride: 2, padding: 3}}, relu, {conv2d: "
     "{name: b, out: 8, kernel: 8, stride: 3, padding: 2}}, relu, flatten, {linear: "
     "{name: fc, out: 5}}"},
    {"strided convolutions without bias", "[16, 8, 8]", "cross_entropy",
     "{conv2d: {name: a, out: 32, kernel: 3, stride: 2, padding: 1, bias: false}}, relu, "
     "{conv2d: {name: b, out: 32, kernel: 1, stride: 2, bias: false}}, flatten, {linear: "
     "{name: fc, out: 5}}"},
    {"max_pool2d after relu", "[2, 8, 8]", "cross_entropy",
     "{conv2d: {name: a, out: 16, kernel: 3, padding: 1}}, relu, {max_pool2d: 2}, "
     "flatten, {linear: {name: fc, out: 5}}"},
    {"max_pool2d that overlaps", "[2, 9, 9]", "cross_entropy",
     "{conv2d: {name: a, out: 18, kernel: 3, padding: 1}}, {max_pool2d: {kernel: 3, "
     "stride: 2, padding: 1}}, relu, flatten, {linear: {name: fc, out: 5}}"},
    {"max_pool2d with a rest, of row-major data", "[3, 7, 9]", "cross_entropy",
     "{conv2d: {name: a, out: 7, kernel: 1}}, {max_pool2d: 2}, tanh, flatten, {linear: "
     "{name: fc, out: 5}}"},
    {"avg_pool2d", "[2, 8, 8]", "cross_entropy",
     "{conv2d: {name: a, out: 24, kernel: 3}}, relu, {avg_pool2d: {kernel: 3, stride: "
     "2, padding: 1}}, flatten, {linear: {name: fc, out: 5}}"},
    {"global avg_pool2d", "[2, 6, 6]", "cross_entropy",
     "{conv2d: {name: a, out: 32, kernel: 3}}, tanh, {avg_pool2d: global}, flatten, "
     "{linear: {name: fc, out: 5}}"},
    {"pooling of the input", "[3, 8, 8]", "cross_entropy",
     "{max_pool2d: 2}, {avg_pool2d: 2}, relu, flatten, {linear: {name: fc, out: 5}}"},
    {"batch_norm2d", "[3, 6, 6]", "cross_entropy",
     "{conv2d: {name: a, out: 16, kernel: 3}}, {batch_norm2d: {name: bn}}, relu, "
     "flatten, {linear: {name: fc, out: 5}}"},
    {"batch_norm2d of 10 channels and of the input", "[3, 6, 6]", "cross_entropy",
     "{batch_norm2d: {name: bn0}}, {conv2d: {name: a, out: 10, kernel: 3}}, "
     "{batch_norm2d: {name: bn}}, {max_pool2d: 2}, flatten, {linear: {name: fc, out: "
     "5}}"},
    {"batch_norm2d of rows and of channels last, with relu", "[1, 9, 9]", "cross_entropy",
     "{conv2d: {name: a, out: 6, kernel: 1, bias: false}}, {batch_norm2d: {name: n1}}, "
     "relu, {conv2d: {name: b, out: 20, kernel: 3, bias: false}}, {batch_norm2d: {name: "
     "n2}}, relu, {max_pool2d: 2}, {conv2d: {name: c, out: 33, kernel: 3}}, "
     "{batch_norm2d: {name: n3}}, tanh, flatten, {linear: {name: fc, out: 5}}"},
    {"batch_norm2d that adds to a gradient", "[2, 8, 8]", "cross_entropy",
     "{conv2d: {name: a, out: 20, kernel: 3}}, relu, {residual: {name: r, body: "
     "[{batch_norm2d: {name: n1}}, relu, {conv2d: {name: b, out: 20, kernel: 3, padding: "
     "1}}, {batch_norm2d: {name: n2}}]}}, relu, {avg_pool2d: global}, flatten, {linear: "
     "{name: fc, out: 5}}"},
    {"batch_norm2d of many values, and groups", "[2, 40, 36]", "cross_entropy",
     "{conv2d: {name: a, out: 3, kernel: 1, bias: false}}, {batch_norm2d: {name: n1}}, "
     "relu, {conv2d: {name: b, out: 4, kernel: [2, 1], bias: false}}, {group_norm: "
     "{name: n2, groups: 2}}, tanh, {avg_pool2d: global}, flatten, {linear: {name: fc, "
     "out: 5}}"},
    {"batch_norm2d of many values in odd planes", "[3, 37, 41]", "cross_entropy",
     "{conv2d: {name: a, out: 2, kernel: 1, bias: false}}, {batch_norm2d: {name: n1}}, "
     "tanh, {avg_pool2d: global}, flatten, {linear: {name: fc, out: 5}}"},
    {"convolutions of 64 and 80 channels", "[3, 4, 3]", "cross_entropy",
     "{conv2d: {name: a, out: 64, kernel: 1}}, tanh, {conv2d: {name: b, out: 80, kernel: "
     "3, padding: 1}}, relu, {conv2d: {name: c, out: 64, kernel: 3, padding: 2, "
     "dilation: 2}}, tanh, {residual: {name: q, body: [{conv2d: {name: g, out: 64, "
     "kernel: 3, padding: 1}}]}}, {residual: {name: r, body: [{conv2d: {name: d, out: "
     "64, "
     "kernel: [3, 2], padding: [0, 1], stride: [2, 1]}}], shortcut: [{conv2d: {name: e, "
     "out: 64, kernel: [3, 1], stride: [2, 1]}}, {conv2d: {name: f, out: 64, kernel: [1, "
     "2], padding: [0, 1]}}]}}, {avg_pool2d: global}, flatten, {linear: {name: fc, out: "
     "5}}"},
    {"dropout before flatten and after relu", "[1, 10, 10]", "nll",
     "{conv2d: {name: a, out: 32, kernel: 3}}, relu, {max_pool2d: 2}, {dropout: 0.25}, "
     "flatten, {linear: {name: fc1, out: 40}}, relu, {dropout: 0.5}, {linear: {name: "
     "fc2, out: 10}}, " NLL},
    {"max_pool2d that overlaps and dropout before flatten", "[2, 11, 11]",
     "cross_entropy",
     "{conv2d: {name: a, out: 40, kernel: 3, padding: 1}}, tanh, {max_pool2d: {kernel: "
     "3, stride: 2, padding: 1}}, {dropout: 0.4}, flatten, {linear: {name: fc, out: 5}}"},
    {"a large max_pool2d and dropout before flatten", "[1, 36, 36]", "cross_entropy",
     "{conv2d: {name: a, out: 16, kernel: 1}}, relu, {max_pool2d: 2}, {dropout: 0.4}, "
     "flatten, {linear: {name: fc, out: 5}}"},
    {"dropout of blocked channels", "[1, 8, 8]", "cross_entropy",
     "{conv2d: {name: a, out: 20, kernel: 3}}, relu, {dropout: 0.3}, {conv2d: {name: b, "
     "out: 16, kernel: 3}}, tanh, {dropout: 0.6}, {avg_pool2d: 2}, flatten, {linear: "
     "{name: fc, out: 5}}"},
    {"dropout of nothing and of the input", "[2, 6, 6]", "cross_entropy",
     "{dropout: 0.2}, {conv2d: {name: a, out: 16, kernel: 3}}, {dropout: 0}, relu, "
     "flatten, {linear: {name: fc, out: 5}}"},
    {"images of one value", "[5, 1, 1]", "cross_entropy",
     "{conv2d: {name: a, out: 7, kernel: 1}}, relu, flatten, {linear: {name: fc, out: "
     "5}}"},
    {"a residual block, identity", "[3, 8, 8]", "cross_entropy",
     "{conv2d: {name: a, out: 16, kernel: 3, padding: 1}}, relu, {residual: {name: r, "
     "body: [{conv2d: {name: b, out: 16, kernel: 3, padding: 1}}, {batch_norm2d: {name: "
     "bn}}, relu, {conv2d: {name: c, out: 16, kernel: 3, padding: 1}}]}}, relu, "
     "flatten, {linear: {name: fc, out: 5}}"},
    {"residual blocks as in ResNet", "[3, 8, 8]", "cross_entropy",
     "{conv2d: {name: a, out: 16, kernel: 3, padding: 1, bias: false}}, {batch_norm2d: "
     "{name: n}}, relu, {residual: {name: r, body: [{conv2d: {name: b, out: 32, kernel: "
     "3, stride: 2, padding: 1, bias: false}}, {batch_norm2d: {name: bn1}}, relu, "
     "{conv2d: {name: c, out: 32, kernel: 3, padding: 1, bias: false}}, {batch_norm2d: "
     "{name: bn2}}], shortcut: [{conv2d: {name: d, out: 32, kernel: 1, stride: 2, bias: "
     "false}}, {batch_norm2d: {name: bn3}}]}}, relu, {residual: {name: s, body: "
     "[{conv2d: {name: b, out: 32, kernel: 3, padding: 1}}, {batch_norm2d: {name: "
     "bn}}]}}, relu, {avg_pool2d: global}, flatten, {linear: {name: fc, out: 5}}"},
    {"as LeNet-5", "[1, 14, 14]", "cross_entropy",
     "{conv2d: {name: a, out: 6, kernel: 5, padding: 2}}, tanh, {max_pool2d: 2}, "
     "{conv2d: "
     "{name: b, out: 16, kernel: 5}}, tanh, {max_pool2d: 2}, flatten, {linear: {name: "
     "fc, "
     "out: 5}}"},
    {"4, 8, 12 and 10 channels", "[4, 10, 9]", "cross_entropy",
     "{conv2d: {name: a, out: 8, kernel: 3, padding: 1}}, relu, {dropout: 0.3}, {conv2d: "
     "{name: b, out: 12, kernel: 3}}, relu, {max_pool2d: 2}, {conv2d: {name: c, out: 10, "
     "kernel: 1}}, {batch_norm2d: {name: bn}}, relu, {avg_pool2d: {kernel: 3, stride: 1, "
     "padding: 1}}, flatten, {linear: {name: fc, out: 5}}"},
    {"10, 20, 33 and 16 channels", "[10, 12, 11]", "cross_entropy",
     "{conv2d: {name: a, out: 20, kernel: 5}}, relu, {max_pool2d: {kernel: 3, stride: 2, "
     "padding: 1}}, {conv2d: {name: b, out: 33, kernel: 3, padding: 1}}, sigmoid, "
     "{conv2d: "
     "{name: c, out: 16, kernel: 3, padding: 1}}, {conv2d: {name: d, out: 32, kernel: "
     "3, padding: 1}}, tanh, {max_pool2d: 2}, {dropout: 0.2}, flatten, {linear: {name: "
     "fc, out: 5}}"},
    {"a kernel of 20", "[1, 23, 22]", "cross_entropy",
     "{conv2d: {name: a, out: 16, kernel: 20}}, relu, flatten, {linear: {name: fc, out: "
     "5}}"},
    {"kernels of 16 by strides of 16", "[3, 32, 32]", "cross_entropy",
     "{conv2d: {name: a, out: 20, kernel: 16, stride: 16}}, relu, flatten, {linear: "
     "{name: "
     "fc, out: 5}}"},
    {"a kernel of 15 that has an input gradient", "[1, 18, 17]", "cross_entropy",
     "{conv2d: {name: a, out: 5, kernel: 1}}, tanh, {conv2d: {name: b, out: 7, kernel: "
     "15, "
     "padding: 1}}, relu, flatten, {linear: {name: fc, out: 5}}"},
    {"many weights for planes of few positions", "[72, 4, 4]", "cross_entropy",
     "{conv2d: {name: a, out: 112, kernel: 3, padding: 1}}, tanh, {conv2d: {name: b, "
     "out: "
     "68, kernel: 3, stride: 2, padding: 1, bias: false}}, relu, {residual: {name: r, "
     "body: [{conv2d: {name: c, out: 112, kernel: 3, padding: 2, dilation: 2}}, relu, "
     "{conv2d: {name: d, out: 68, kernel: 3, padding: 1}}]}}, relu, {avg_pool2d: "
     "global}, flatten, {linear: {name: fc, out: 5}}"},
    {"3 x 3 windows of small planes", "[16, 5, 4]", "cross_entropy",
     "{conv2d: {name: a, out: 32, kernel: 3, padding: 1}}, relu, {conv2d: {name: b, out: "
     "16, kernel: 3, padding: 1}}, relu, {max_pool2d: 2}, {conv2d: {name: c, out: 16, "
     "kernel: 3, padding: 1}}, relu, {max_pool2d: 2}, {conv2d: {name: d, out: 16, "
     "kernel: "
     "3, padding: 1}}, flatten, {linear: {name: fc, out: 5}}"},
    {"pools of 3 and 7 channels", "[2, 13, 12]", "cross_entropy",
     "{conv2d: {name: a, out: 3, kernel: 3, padding: 1}}, {max_pool2d: 2}, {conv2d: "
     "{name: "
     "b, out: 7, kernel: 3, padding: 1}}, relu, {max_pool2d: {kernel: 3, stride: 1, "
     "padding: "
     "1}}, {avg_pool2d: 2}, flatten, {linear: {name: fc, out: 5}}"},
    {"residual blocks of channels that fill no vector", "[3, 8, 8]", "cross_entropy",
     "{conv2d: {name: a, out: 20, kernel: 3, padding: 1}}, relu, {residual: {name: r, "
     "body: [{conv2d: {name: b, out: 20, kernel: 3, padding: 1}}, {batch_norm2d: {name: "
     "bn}}]}}, relu, {residual: {name: s, body: [{conv2d: {name: b, out: 24, kernel: 3, "
     "stride: 2, padding: 1}}], shortcut: [{avg_pool2d: 2}, {conv2d: {name: d, out: 24, "
     "kernel: 1}}]}}, relu, {conv2d: {name: e, out: 64, kernel: 1}}, {avg_pool2d: "
     "global}, flatten, {linear: {name: fc, out: 5}}"},
    {"a residual block of flat layers around the input", "[12]", "mse",
     "{residual: {name: r, body: [{linear: {name: a, out: 12}}, tanh]}}, {residual: "
     "{name: s, body: [sigmoid, {linear: {name: a, out: 12}}], shortcut: [tanh]}}, "
     "{linear: {name: fc, out: 5}}"},
    {"upsample, nearest", "[3, 5, 4]", "cross_entropy",
     "{conv2d: {name: a, out: 16, kernel: 3, padding: 1}}, relu, {upsample: 2}, {conv2d: "
     "{name: b, out: 8, kernel: 3}}, tanh, {upsample: {size: [7, 13]}}, {conv2d: {name: "
     "c, out: 5, kernel: 3}}, {upsample: {scale: [1, 3]}}, {avg_pool2d: global}, "
     "flatten, {linear: {name: fc, out: 5}}"},
    {"upsample, bilinear", "[3, 5, 4]", "cross_entropy",
     "{upsample: {scale: 2, mode: bilinear}}, {conv2d: {name: a, out: 20, kernel: 3}}, "
     "tanh, {upsample: {scale: [2, 4], mode: bilinear}}, {conv2d: {name: b, out: 16, "
     "kernel: 3, stride: 2}}, tanh, {residual: {name: r, body: [{conv2d: {name: c, out: "
     "16, kernel: 3, padding: 1}}], shortcut: [{upsample: 1}]}}, {avg_pool2d: global}, "
     "flatten, {linear: {name: fc, out: 5}}"},
    {"adaptive pools that divide", "[3, 12, 16]", "cross_entropy",
     "{conv2d: {name: a, out: 21, kernel: 1}}, tanh, {adaptive_avg_pool2d: [6, 8]}, "
     "{adaptive_max_pool2d: [3, 2]}, {conv2d: {name: c, out: 6, kernel: 1}}, tanh, "
     "{adaptive_avg_pool2d: 1}, flatten, {linear: {name: fc, out: 5}}"},
    {"adaptive max pools of any size", "[3, 13, 11]", "cross_entropy",
     "{conv2d: {name: a, out: 21, kernel: 2}}, relu, {adaptive_max_pool2d: [5, 7]}, "
     "{conv2d: {name: b, out: 16, kernel: 1}}, tanh, {adaptive_max_pool2d: [9, 12]}, "
     "{residual: {name: r, body: [{conv2d: {name: c, out: 16, kernel: 3}}, "
     "{adaptive_max_pool2d: 4}], shortcut: [{adaptive_max_pool2d: [4, 5]}, "
     "{adaptive_max_pool2d: 4}]}}, {dropout: 0.2}, flatten, {linear: {name: fc, out: "
     "5}}"},
    {"an adaptive max pool of large windows", "[2, 20, 19]", "cross_entropy",
     "{adaptive_max_pool2d: [21, 17]}, {conv2d: {name: a, out: 20, kernel: 1}}, tanh, "
     "{adaptive_max_pool2d: 1}, flatten, {linear: {name: fc, out: 5}}"},
    {"concat of blocks", "[3, 8, 7]", "cross_entropy",
     "{conv2d: {name: a, out: 16, kernel: 1}}, relu, {concat: {name: f, branches: "
     "[[{conv2d: {name: b, out: 32, kernel: 1}}, relu], [{conv2d: {name: c, out: 16, "
     "kernel: 3, padding: 1}}, relu], []]}}, {conv2d: {name: d, out: 16, kernel: 3}}, "
     "relu, {concat: [[], [tanh], [{max_pool2d: {kernel: 3, stride: 1, padding: 1}}]]}, "
     "{avg_pool2d: global}, flatten, {linear: {name: fc, out: 5}}"},
    {"concat of channels that fill no block", "[3, 8, 7]", "cross_entropy",
     "{concat: [[], [{conv2d: {name: a, out: 5, kernel: 1}}, tanh], [{conv2d: {name: b, "
     "out: 16, kernel: 1}}, tanh]]}, {conv2d: {name: c, out: 16, kernel: 1}}, relu, "
     "{concat: {name: g, branches: [[{conv2d: {name: d, out: 16, kernel: 1, bias: "
     "false}}], [{conv2d: {name: e, out: 21, kernel: 1, bias: false}}], [{conv2d: {name: "
     "f, out: 7, kernel: 1, bias: false}}]]}}, {batch_norm2d: {name: n}}, relu, "
     "{dropout: 0.3}, {conv2d: {name: h, out: 8, kernel: 3}}, flatten, {linear: {name: "
     "fc, out: 5}}"},
    {"concat of features", "[9]", "nll",
     "{concat: [[{linear: {name: a, out: 7}}, relu], [{linear: {name: b, out: 4}}], "
     "[]]}, {batch_norm1d: {name: n}}, relu, {linear: {name: c, out: 16}}, "
     "{batch_norm1d: {name: m}}, {linear: {name: d, out: 5}}, " NLL},
    {"sequences", "[3, 40]", "cross_entropy",
     "{conv1d: {name: a, out: 8, kernel: 5, padding: 2}}, {batch_norm1d: {name: n}}, "
     "relu, {max_pool1d: 2}, {conv1d: {name: b, out: 16, kernel: 3, stride: 2, dilation: "
     "2, padding: 1, groups: 2, bias: false}}, {group_norm: {name: g, groups: 4}}, gelu, "
     "{residual: {name: r, body: [{conv1d: {name: c, out: 16, kernel: 3, padding: 1}}, "
     "tanh]}}, {avg_pool1d: {kernel: 3, stride: 1, padding: 1}}, {adaptive_avg_pool1d: "
     "4}, {concat: [[], [{avg_pool1d: {kernel: 3, stride: 1, padding: 1}}]]}, flatten, "
     "{linear: {name: fc, out: 5}}"},
};

const size_t model_n_cases = sizeof model_cases / sizeof *model_cases;
