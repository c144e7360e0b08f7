/* The words of the configuration as enums, so that only the reader compares text. Each
 * enum has its table of words (word.h). */
#ifndef PS_CONFIG_WORDS_H
#define PS_CONFIG_WORDS_H

#include "word.h"

/* train.cudnn, train.channels_last, loss_scale.use, exchange.shm */
typedef enum ps_switch { PS_SWITCH_AUTO, PS_SWITCH_ON, PS_SWITCH_OFF } ps_switch;
extern const ps_word ps_switch_words[];

/* train.winograd: the passes of 3 x 3 convolutions by Winograd's algorithm, on CPUs. The
 * default is the first. */
typedef enum ps_winograd {
    PS_WINOGRAD_GRADIENTS,
    PS_WINOGRAD_OFF,
    PS_WINOGRAD_ALL // forward too
} ps_winograd;
extern const ps_word ps_winograd_words[];

/* model.loss */
typedef enum ps_loss_kind {
    PS_LOSS_NLL,           // input: log-probabilities (N, classes); labels int32
    PS_LOSS_CROSS_ENTROPY, // input: logits (N, classes); labels int32
    // Of numbers: input and target (N, outputs), mean over both; a label is one-hot.
    PS_LOSS_MSE,
    PS_LOSS_L1,
    PS_LOSS_SMOOTH_L1,      // beta 1
    PS_LOSS_BCE_WITH_LOGITS // targets 0 to 1
} ps_loss_kind;
extern const ps_word ps_loss_words[];

/* Whether the targets may be numbers; if not, they are classes. */
#define PS_LOSS_OF_NUMBERS(kind) ((kind) >= PS_LOSS_MSE)

/* train.device */
typedef enum ps_device_kind {
    PS_DEVICE_AUTO, // the first that the machine has
    PS_DEVICE_CPU,
    PS_DEVICE_CUDA
} ps_device_kind;
extern const ps_word ps_device_words[];

typedef struct ps_device_choice {
    ps_device_kind kind;
    int index; // "cuda:1"; -1: not given
} ps_device_choice;

/* "auto", "cpu", "cuda", "cuda:N"; false for anything else. */
bool ps_device_choice_parse(const char *text, ps_device_choice *out);
/* The text of a choice; returns out. */
enum { PS_DEVICE_TEXT = 16 };
const char *ps_device_choice_text(ps_device_choice choice, char out[PS_DEVICE_TEXT]);

/* train.precision */
typedef enum ps_precision {
    PS_PRECISION_FLOAT32,
    PS_PRECISION_BF16,
    PS_PRECISION_FP16
} ps_precision;
extern const ps_word ps_precision_words[];

/* data.kind */
typedef enum ps_data_kind {
    PS_DATA_IDX,
    PS_DATA_CIFAR10,
    PS_DATA_CIFAR100,
    PS_DATA_STL10,
    PS_DATA_NPY,
    PS_DATA_CSV,
    PS_DATA_IMAGE_FOLDER,
    PS_DATA_CRITEO,
    PS_DATA_SYNTHETIC,        // made, not read
    PS_DATA_SYNTHETIC_CLICKS, // likewise, as Criteo's
    PS_DATA_KINDS
} ps_data_kind;
extern const ps_word ps_data_words[];

static inline bool ps_data_is_made(ps_data_kind kind)
{
    return kind == PS_DATA_SYNTHETIC || kind == PS_DATA_SYNTHETIC_CLICKS;
}

/* Samples have counts and ids, as in Criteo's files. */
static inline bool ps_data_is_clicks(ps_data_kind kind)
{
    return kind == PS_DATA_CRITEO || kind == PS_DATA_SYNTHETIC_CLICKS;
}

/* data.missing: what a cell without a value becomes */
typedef enum ps_missing { PS_MISSING_ERROR, PS_MISSING_MEAN, PS_MISSING_OWN } ps_missing;
extern const ps_word ps_missing_words[];

/* data.encoding: what a column of texts becomes */
typedef enum ps_encoding {
    PS_ENCODING_AUTO, // by how many there are
    PS_ENCODING_ONEHOT,
    PS_ENCODING_EMBEDDING
} ps_encoding;
extern const ps_word ps_encoding_words[];

/* data.unreadable */
typedef enum ps_unreadable { PS_UNREADABLE_ERROR, PS_UNREADABLE_SKIP } ps_unreadable;
extern const ps_word ps_unreadable_words[];

/* optimizer.name */
typedef enum ps_optimizer_kind {
    PS_OPTIMIZER_SGD,
    PS_OPTIMIZER_ADAM,
    PS_OPTIMIZER_ADAMW,
    PS_OPTIMIZER_RMSPROP,
    PS_OPTIMIZER_ADAGRAD,
    PS_OPTIMIZER_LION,
    PS_OPTIMIZER_LAMB,
    PS_OPTIMIZER_SUM, // no step: the "weights" are the sum of the gradients
    PS_OPTIMIZER_MEAN // likewise their mean
} ps_optimizer_kind;
extern const ps_word ps_optimizer_words[];

/* schedule.name */
typedef enum ps_schedule_kind {
    PS_SCHEDULE_CONSTANT,
    PS_SCHEDULE_STEP,
    PS_SCHEDULE_COSINE,
    PS_SCHEDULE_COSINE_RESTARTS,
    PS_SCHEDULE_LINEAR,
    PS_SCHEDULE_POLYNOMIAL,
    PS_SCHEDULE_ONECYCLE,
    PS_SCHEDULE_PLATEAU
} ps_schedule_kind;
extern const ps_word ps_schedule_words[];

/* schedule.metric */
typedef enum ps_plateau_metric { PS_PLATEAU_LOSS, PS_PLATEAU_ACCURACY } ps_plateau_metric;
extern const ps_word ps_plateau_words[];

/* schedule.anneal */
typedef enum ps_anneal { PS_ANNEAL_COS, PS_ANNEAL_LINEAR } ps_anneal;
extern const ps_word ps_anneal_words[];

/* exchange.name */
typedef enum ps_exchange_kind {
    PS_EXCHANGE_PS,
    PS_EXCHANGE_ALLREDUCE, // by the engine that suits the device
    PS_EXCHANGE_GLOO,
    PS_EXCHANGE_NCCL,
    PS_EXCHANGE_NONE
} ps_exchange_kind;
extern const ps_word ps_exchange_words[];

/* exchange.codec, and the numbers on the wire. Two are not codecs and have no word. SHM:
 * the payload lies in shared memory. IDLE: there is none, because the step belongs to an
 * optimizer that the chunk does not belong to. */
typedef enum ps_codec {
    PS_CODEC_NONE = 0,
    PS_CODEC_SHM = 1,
    PS_CODEC_FP16 = 2,
    PS_CODEC_INT8 = 3,
    PS_CODEC_ONEBIT = 4,
    PS_CODEC_TOPK = 5,
    PS_CODEC_BF16 = 6,
    PS_CODEC_INT4 = 7,
    PS_CODEC_IDLE = 8,
    PS_CODEC_COUNT
} ps_codec;
extern const ps_word ps_codec_words[];

/* True when the codec uses error feedback: a sender keeps what it has not sent (codec.h).
 */
bool ps_codec_feeds_back(ps_codec codec);

/* checkpoint.best */
typedef enum ps_best {
    PS_BEST_NONE,
    PS_BEST_LOSS,
    PS_BEST_ACCURACY,
    PS_BEST_AUC
} ps_best;
extern const ps_word ps_best_words[];

/* exchange.nan */
typedef enum ps_nan_rule { PS_NAN_ERROR, PS_NAN_ALLOW } ps_nan_rule;
extern const ps_word ps_nan_words[];

/* sync.policy */
typedef enum ps_policy_kind {
    PS_POLICY_BSP,
    PS_POLICY_LOCAL,
    PS_POLICY_BACKUP,
    PS_POLICY_SSP,
    PS_POLICY_ASP
} ps_policy_kind;
extern const ps_word ps_policy_words[];
extern const ps_word ps_rows_policy_words[]; // rows.policy: some of them

/* sync.late */
typedef enum ps_late_rule { PS_LATE_DROP, PS_LATE_ADD } ps_late_rule;
extern const ps_word ps_late_words[];

/* sync.correction */
typedef enum ps_correction {
    PS_CORRECTION_NONE,
    PS_CORRECTION_LR,
    PS_CORRECTION_DELAY
} ps_correction;
extern const ps_word ps_correction_words[];

#endif
