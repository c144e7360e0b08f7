#include "config_words.h"

#include <stdio.h>
#include <string.h>

#include "parse_text.h"

const ps_word ps_switch_words[] = {
    {"auto", PS_SWITCH_AUTO}, {"on", PS_SWITCH_ON}, {"off", PS_SWITCH_OFF}, {NULL, 0}};

/* The last two: the key once was true or false. */
const ps_word ps_winograd_words[] = {
    {"off", PS_WINOGRAD_OFF},   {"gradients", PS_WINOGRAD_GRADIENTS},
    {"all", PS_WINOGRAD_ALL},   {"true", PS_WINOGRAD_GRADIENTS},
    {"false", PS_WINOGRAD_OFF}, {NULL, 0}};

const ps_word ps_loss_words[] = {{"nll", PS_LOSS_NLL},
                                 {"cross_entropy", PS_LOSS_CROSS_ENTROPY},
                                 {"mse", PS_LOSS_MSE},
                                 {"l1", PS_LOSS_L1},
                                 {"smooth_l1", PS_LOSS_SMOOTH_L1},
                                 {"bce_with_logits", PS_LOSS_BCE_WITH_LOGITS},
                                 {NULL, 0}};

const ps_word ps_device_words[] = {{"auto", PS_DEVICE_AUTO},
                                   {"cpu", PS_DEVICE_CPU},
                                   {"cuda", PS_DEVICE_CUDA},
                                   {NULL, 0}};

const ps_word ps_precision_words[] = {{"float32", PS_PRECISION_FLOAT32},
                                      {"bf16", PS_PRECISION_BF16},
                                      {"fp16", PS_PRECISION_FP16},
                                      {NULL, 0}};

const ps_word ps_data_words[] = {{"idx", PS_DATA_IDX},
                                 {"cifar10", PS_DATA_CIFAR10},
                                 {"cifar100", PS_DATA_CIFAR100},
                                 {"stl10", PS_DATA_STL10},
                                 {"npy", PS_DATA_NPY},
                                 {"csv", PS_DATA_CSV},
                                 {"image_folder", PS_DATA_IMAGE_FOLDER},
                                 {"criteo", PS_DATA_CRITEO},
                                 {"synthetic", PS_DATA_SYNTHETIC},
                                 {"synthetic_clicks", PS_DATA_SYNTHETIC_CLICKS},
                                 {NULL, 0}};

const ps_word ps_optimizer_words[] = {
    {"sgd", PS_OPTIMIZER_SGD},         {"adam", PS_OPTIMIZER_ADAM},
    {"adamw", PS_OPTIMIZER_ADAMW},     {"rmsprop", PS_OPTIMIZER_RMSPROP},
    {"adagrad", PS_OPTIMIZER_ADAGRAD}, {"lion", PS_OPTIMIZER_LION},
    {"lamb", PS_OPTIMIZER_LAMB},       {"sum", PS_OPTIMIZER_SUM},
    {"mean", PS_OPTIMIZER_MEAN},       {NULL, 0}};

const ps_word ps_schedule_words[] = {{"constant", PS_SCHEDULE_CONSTANT},
                                     {"step", PS_SCHEDULE_STEP},
                                     {"cosine", PS_SCHEDULE_COSINE},
                                     {"cosine_restarts", PS_SCHEDULE_COSINE_RESTARTS},
                                     {"linear", PS_SCHEDULE_LINEAR},
                                     {"polynomial", PS_SCHEDULE_POLYNOMIAL},
                                     {"onecycle", PS_SCHEDULE_ONECYCLE},
                                     {"plateau", PS_SCHEDULE_PLATEAU},
                                     {NULL, 0}};

const ps_word ps_plateau_words[] = {
    {"loss", PS_PLATEAU_LOSS}, {"accuracy", PS_PLATEAU_ACCURACY}, {NULL, 0}};

const ps_word ps_anneal_words[] = {
    {"cos", PS_ANNEAL_COS}, {"linear", PS_ANNEAL_LINEAR}, {NULL, 0}};

const ps_word ps_exchange_words[] = {
    {"ps", PS_EXCHANGE_PS},     {"allreduce", PS_EXCHANGE_ALLREDUCE},
    {"gloo", PS_EXCHANGE_GLOO}, {"nccl", PS_EXCHANGE_NCCL},
    {"none", PS_EXCHANGE_NONE}, {NULL, 0}};

const ps_word ps_codec_words[] = {{"none", PS_CODEC_NONE}, {"fp16", PS_CODEC_FP16},
                                  {"bf16", PS_CODEC_BF16}, {"int8", PS_CODEC_INT8},
                                  {"int4", PS_CODEC_INT4}, {"onebit", PS_CODEC_ONEBIT},
                                  {"topk", PS_CODEC_TOPK}, {NULL, 0}};

bool ps_codec_feeds_back(ps_codec codec)
{
    return codec == PS_CODEC_INT4 || codec == PS_CODEC_ONEBIT || codec == PS_CODEC_TOPK;
}

const ps_word ps_nan_words[] = {
    {"error", PS_NAN_ERROR}, {"allow", PS_NAN_ALLOW}, {NULL, 0}};

const ps_word ps_missing_words[] = {{"error", PS_MISSING_ERROR},
                                    {"mean", PS_MISSING_MEAN},
                                    {"own", PS_MISSING_OWN},
                                    {NULL, 0}};

const ps_word ps_encoding_words[] = {{"auto", PS_ENCODING_AUTO},
                                     {"onehot", PS_ENCODING_ONEHOT},
                                     {"embedding", PS_ENCODING_EMBEDDING},
                                     {NULL, 0}};

const ps_word ps_unreadable_words[] = {
    {"error", PS_UNREADABLE_ERROR}, {"skip", PS_UNREADABLE_SKIP}, {NULL, 0}};

const ps_word ps_best_words[] = {{"none", PS_BEST_NONE},
                                 {"loss", PS_BEST_LOSS},
                                 {"accuracy", PS_BEST_ACCURACY},
                                 {"auc", PS_BEST_AUC},
                                 {NULL, 0}};

const ps_word ps_policy_words[] = {
    {"bsp", PS_POLICY_BSP}, {"backup", PS_POLICY_BACKUP}, {"ssp", PS_POLICY_SSP},
    {"asp", PS_POLICY_ASP}, {"local", PS_POLICY_LOCAL},   {NULL, 0}};

const ps_word ps_rows_policy_words[] = {
    {"bsp", PS_POLICY_BSP}, {"asp", PS_POLICY_ASP}, {NULL, 0}};

const ps_word ps_late_words[] = {{"drop", PS_LATE_DROP}, {"add", PS_LATE_ADD}, {NULL, 0}};

const ps_word ps_correction_words[] = {{"none", PS_CORRECTION_NONE},
                                       {"lr", PS_CORRECTION_LR},
                                       {"delay", PS_CORRECTION_DELAY},
                                       {NULL, 0}};

bool ps_device_choice_parse(const char *text, ps_device_choice *out)
{
    uint64_t index;
    int kind;
    if (strncmp(text, "cuda:", 5) == 0) {
        if (!ps_parse_uint(text + 5, &index) || index >= 1024) return false;
        *out = (ps_device_choice){PS_DEVICE_CUDA, (int)index};
        return true;
    }
    if (!ps_word_find(ps_device_words, text, &kind)) return false;
    *out = (ps_device_choice){(ps_device_kind)kind, -1};
    return true;
}

const char *ps_device_choice_text(ps_device_choice choice, char out[PS_DEVICE_TEXT])
{
    const char *name = ps_word_name(ps_device_words, (int)choice.kind);
    if (choice.index < 0)
        snprintf(out, PS_DEVICE_TEXT, "%s", name);
    else
        snprintf(out, PS_DEVICE_TEXT, "%s:%d", name, choice.index);
    return out;
}
