#include "config_schema.h"

#include <string.h>

/* Larger than any sensible count, and exact in a double. */
#define MANY 1e15
/* The largest number of milliseconds that fits an int: a little over 24 days. */
#define LONG_MS 2147483647

#define KEY(path, type, scope, resume, field, min, max, words, text, help)               \
    {                                                                                    \
        path, PS_KEY_##type, PS_SCOPE_##scope, PS_RESUME_##resume,                       \
            offsetof(ps_config, field), min, max, words, text, help                      \
    }
#define BOOL(path, field, scope, resume, text, help)                                     \
    KEY(path, BOOL, scope, resume, field, 0, 0, NULL, text, help)
#define INT(path, field, scope, resume, min, max, text, help)                            \
    KEY(path, INT, scope, resume, field, min, max, NULL, text, help)
#define RANGE(path, field, scope, resume, min, max, text, help)                          \
    KEY(path, RANGE, scope, resume, field, min, max, NULL, text, help)
#define SEED(path, field, text, help)                                                    \
    KEY(path, UINT64, JOB, WARNED, field, 0, 0, NULL, text, help)
#define DOUBLE(path, field, scope, resume, min, max, text, help)                         \
    KEY(path, DOUBLE, scope, resume, field, min, max, NULL, text, help)
#define BYTES(path, field, scope, resume, min, text, help)                               \
    KEY(path, BYTES, scope, resume, field, min, MANY, NULL, text, help)
#define STRING(path, field, scope, resume, text, help)                                   \
    KEY(path, STRING, scope, resume, field, 0, 0, NULL, text, help)
#define WORD(path, field, scope, resume, words, text, help)                              \
    KEY(path, WORD, scope, resume, field, 0, 0, words, text, help)
#define DEVICE(path, field, scope, resume, text, help)                                   \
    KEY(path, DEVICE, scope, resume, field, 0, 0, NULL, text, help)
#define INTS(path, field, scope, resume, min, max, text, help)                           \
    KEY(path, INT_LIST, scope, resume, field, min, max, NULL, text, help)
#define NAMES(path, field, scope, resume, text, help)                                    \
    KEY(path, NAMES, scope, resume, field, 0, 0, NULL, text, help)
#define PATTERNS(path, field, scope, resume, text, help)                                 \
    KEY(path, PATTERNS, scope, resume, field, 0, 0, NULL, text, help)
#define GROUPS(path, field, scope, resume, text, help)                                   \
    KEY(path, GROUPS, scope, resume, field, 0, 0, NULL, text, help)
#define DOUBLES(path, field, scope, resume, min, max, text, help)                        \
    KEY(path, DOUBLE_LIST, scope, resume, field, min, max, NULL, text, help)

// clang-format off
const ps_config_key ps_config_keys[] = {
    STRING("job.name", job.name, LOCAL, FREE, "",
           "name of the job in outputs; not given: the file's name without .yaml"),
    INT("job.servers", job.servers, JOB, FREE, 0, PS_MAX_RANKS, "1",
        "server processes; --servers and PS_SERVERS override the file"),
    RANGE("job.workers", job.workers_range, JOB, WARNED, 1, PS_MAX_RANKS, "1",
          "worker processes; --world-size and WORLD_SIZE override the file. A range, such as "
          "2..8: workers may join and leave while the job runs"),
    INT("job.start_workers", job.start_workers, LOCAL, FREE, 0, PS_MAX_RANKS, "0",
        "where job.workers is a range: how many workers the job begins with; WORLD_SIZE says "
        "it, too. 0: as many as have joined when nobody has come for a second"),

    INTS("model.input", model.input, JOB, WARNED, 1, 1 << 24, "[]",
         "shape of a sample: [C, H, W], [C, length] or [features]"),
    INTS("model.categories", model.categories, JOB, WARNED, 1, 1 << 24, "[]",
         "rows of the embedding of each of the last inputs, which are whole numbers from 0; psrun "
         "and ps-worker take it from the table (data.encoding)"),
    BOOL("model.dropout", model.dropout, JOB, WARNED, "true",
         "false: every dropout layer passes its input through"),
    WORD("model.loss", model.loss, JOB, REFUSED, ps_loss_words, "cross_entropy",
         "the loss, as in PyTorch; nll needs log_softmax as the last layer; the losses after "
         "cross_entropy compare with numbers (docs/losses.md)"),

    INT("train.epochs", train.epochs, JOB, FREE, 0, MANY, "1",
        "passes over the training data; 0: only write the weights and evaluate"),
    INT("train.steps", train.steps, JOB, FREE, 0, MANY, "0",
        "stop after this many optimizer steps; 0: no limit"),
    INT("train.stop_after", train.stop_after, LOCAL, FREE, 0, MANY, "0",
        "end in order after this optimizer step, with a checkpoint to go on from, as if told "
        "to (exit code 75); the same for all workers; 0: do not"),
    SEED("train.seed", train.seed, "0", "seed of the initial weights and of dropout"),
    DEVICE("train.device", train.device, LOCAL, WARNED, "auto",
           "where the arithmetic runs; auto: a GPU if there is one, else the CPU"),
    WORD("train.precision", train.precision, JOB, WARNED, ps_precision_words, "float32",
         "type of the factors of products (conv2d, linear), and of activations; "
         "sums, losses and the weights kept are float32; fp16: on GPUs, and on CPUs that "
         "multiply it (docs/gpu.md)"),
    BOOL("train.tf32", train.tf32, JOB, WARNED, "false",
         "let NVIDIA GPUs round the factors of float32 products to 10 bits"),
    WORD("train.cudnn", train.cudnn, JOB, WARNED, ps_switch_words, "auto",
         "compute convolutions on NVIDIA GPUs by cuDNN; auto: if it is found"),
    WORD("train.channels_last", train.channels_last, JOB, WARNED, ps_switch_words, "off",
         "bf16, fp16: NVIDIA GPUs keep pictures between layers with their channels last, as cuDNN's "
         "kernels for 16 bits read them; auto: if cuDNN has kernels for as many convolutions then"),
    WORD("train.winograd", train.winograd, JOB, WARNED, ps_winograd_words, "gradients",
         "3 x 3 convolutions on CPUs by Winograd's algorithm where it is faster: gradients, or all; all: "
         "the last bits differ more from PyTorch's, the accuracy does not; off: plain sums"),
    BOOL("train.graphs", train.graphs, LOCAL, FREE, "true",
         "replay a GPU's passes as CUDA graphs; false: launch each kernel, to find faults"),
    BOOL("train.numa", train.numa, LOCAL, FREE, "true",
         "bind a worker to the cores and the memory of its GPU's NUMA node, where nobody else has "
         "bound it"),
    INT("train.threads", train.threads, LOCAL, WARNED, 0, 1024, "1",
        "compute threads of a worker; 0: one per core, as far as its layers have work for "
        "them"),
    INT("train.accumulate", train.accumulate, JOB, WARNED, 1, 1 << 20, "1",
        "micro-batches per optimizer step"),
    DOUBLE("train.label_smoothing", train.label_smoothing, JOB, WARNED, 0, 1, "0",
           "cross_entropy, nll: this part of each label is spread over all classes"),
    DOUBLES("train.class_weights", train.class_weights, JOB, WARNED, 0, 1e9, "[]",
            "cross_entropy, nll: a weight for each class; not given: all 1"),
    INT("train.ignore_index", train.ignore_index, JOB, WARNED, -2147483648.0, 2147483647, "-100",
        "cross_entropy, nll: samples with this label count neither in the loss nor in the "
        "accuracy"),
    STRING("train.init", train.init, LOCAL, WARNED, "",
           "start from this safetensors file; not given: PyTorch's default weights"),
    BOOL("train.init_strict", train.init_strict, LOCAL, FREE, "true",
         "the file has to have exactly the model's tensors; false: take those that fit in name "
         "and shape, and say which do not"),
    PATTERNS("train.freeze", train.freeze, JOB, WARNED, "[]",
             "parameters that keep their first values, by patterns of their names: [conv*, "
             "'*.bias']; their gradients are neither computed nor sent (docs/optimizers.md)"),
    INT("train.save_every", train.save_every, JOB, WARNED, 0, MANY, "0",
        "also write the weights every this many optimizer steps; 0: only at the end; with a codec "
        "workers go on from the servers' exact weights, which changes the bits"),
    INT("train.file_timeout_ms", train.file_timeout_ms, LOCAL, FREE, 1, LONG_MS, "600000",
        "how long the other workers wait while worker 0 reads or writes a file"),
    INT("train.log_every", train.log_every, JOB, FREE, 1, MANY, "10",
        "optimizer steps per line of metrics.jsonl"),
    INT("train.eval_every", train.eval_every, JOB, WARNED, 0, MANY, "1",
        "epochs between evaluations; 0: only at the end"),
    INT("train.patience", train.patience, JOB, FREE, 0, MANY, "0",
        "early stopping: end after this many evaluations in a row without a better test loss "
        "(checkpoint.best accuracy, auc: that); 0: do not"),
    DOUBLE("train.ema", train.ema, JOB, WARNED, 0, 1, "0",
           "keep an exponential moving average of the weights with this decay, such as 0.999, and "
           "write it to ema.safetensors; 0: do not"),
    INT("train.warmup_steps", train.warmup_steps, LOCAL, FREE, 0, MANY, "10",
        "first optimizer steps that samples_per_second does not count"),
    BOOL("train.trace", train.trace, LOCAL, FREE, "false",
         "record what each process did when; psrun makes trace.json of it, for Perfetto"),
    BOOL("train.tensorboard", train.tensorboard, LOCAL, FREE, "false",
         "write events for TensorBoard into the run's folder (--tensorboard)"),

    INT("checkpoint.every", checkpoint.every, JOB, FREE, 0, MANY, "0",
        "write a checkpoint, from which --resume goes on, every this many optimizer steps; "
        "0: not by steps"),
    DOUBLE("checkpoint.minutes", checkpoint.minutes, JOB, FREE, 0, 1e6, "0",
           "write one every this many minutes; 0: not by time"),
    INT("checkpoint.keep", checkpoint.keep, LOCAL, FREE, 1, 1 << 20, "3",
        "how many of the newest checkpoints stay"),
    INT("checkpoint.rows_full_every", checkpoint.rows_full_every, LOCAL, FREE, 1, 1 << 20, "1",
        "with embedding tables: each such checkpoint has all rows, those in between only what "
        "has changed since"),
    STRING("checkpoint.path", checkpoint.path, LOCAL, FREE, "",
           "folder of the checkpoints, on worker 0's host; not given: checkpoints/ in the "
           "run's folder"),
    WORD("checkpoint.best", checkpoint.best, JOB, REFUSED, ps_best_words, "none",
         "also keep the checkpoint with the best test loss, accuracy or, of two classes, AUC"),

    WORD("data.kind", data.kind, JOB, WARNED, ps_data_words, "synthetic",
         "format of the files; synthetic, synthetic_clicks: learnable data, made without "
         "files"),
    STRING("data.path", data.path, LOCAL, FREE, "", "folder of the data files"),
    STRING("data.train", data.train, JOB, WARNED, "",
           "training samples: files, a range, or both: 0-7999, a.gz,b.gz, a,b@0-99"),
    STRING("data.test", data.test, JOB, WARNED, "",
           "test samples, in the same form as data.train; or a share of the training samples, "
           "which is not trained on: 20%"),
    STRING("data.test_by", data.test_by, JOB, WARNED, "random",
           "how such a share is chosen: random, by data.seed, alike in each class; order: the last "
           "samples; of a table also a column, such as a date: the lines with its largest values"),
    NAMES("data.target", data.target, JOB, WARNED, "[]",
          "csv: the column to predict, by its name; several, of numbers: [price, rent]; not given: "
          "the last column, and all others are numbers, which are taken as they are"),
    NAMES("data.columns", data.columns, JOB, WARNED, "[]",
          "csv with data.target: the columns to predict from; not given: all others"),
    NAMES("data.drop", data.drop, JOB, WARNED, "[]",
          "csv with data.target: columns to leave out: [id]; predictions.csv begins with them"),
    NAMES("data.categories", data.categories, JOB, WARNED, "[]",
          "csv with data.target: columns whose numbers are names, such as a postcode: [zip]; columns "
          "of texts are of categories in any case"),
    BOOL("data.standardize", data.standardize, JOB, WARNED, "true",
         "csv with data.target: bring columns of numbers, and targets, to mean 0 and standard "
         "deviation 1 by those of the training samples; results are in the table's own units"),
    WORD("data.missing", data.missing, JOB, WARNED, ps_missing_words, "error",
         "csv with data.target: a cell without a value is an error, becomes the training samples' "
         "mean, or has an input of its own"),
    WORD("data.encoding", data.encoding, JOB, WARNED, ps_encoding_words, "auto",
         "csv with data.target: a column of texts becomes an input for each text (onehot), or a "
         "row of numbers that is learned (embedding); auto: embedding above 100 texts"),
    WORD("data.unreadable", data.unreadable, JOB, WARNED, ps_unreadable_words, "error",
         "image_folder: a picture that cannot be read is an error, or is left out and counted"),
    BOOL("data.stream", data.stream, LOCAL, FREE, "false",
         "npy, csv, criteo: read samples from a file when a batch needs them, so that they may be "
         "larger than the memory; an npy file must not be compressed; of a csv or criteo file the "
         "cells are first written into a temporary file beside it, or in /var/tmp"),
    INTS("data.batch", data.batch, JOB, WARNED, 0, 1 << 24, "[64]",
         "samples per micro-batch of a worker: one number for all, or one per rank; auto (or 0): "
         "data.global_batch, or 64 per worker, divided after each epoch by the workers' measured "
         "speeds, at most four times the mean each"),
    INT("data.global_batch", data.global_batch, JOB, WARNED, 0, 1LL << 40, "0",
        "samples of an optimizer step, whatever the number of workers is: the workers accumulate "
        "micro-batches of at most data.batch; 0: data.batch times workers times train.accumulate"),
    INT("data.eval_batch", data.eval_batch, LOCAL, FREE, 1, 1 << 24, "256",
        "samples per batch of an evaluation"),
    BOOL("data.shuffle", data.shuffle, JOB, WARNED, "true",
         "a new permutation in each epoch, the same as DistributedSampler's"),
    BOOL("data.drop_last", data.drop_last, JOB, WARNED, "false",
         "drop samples at the end so that all workers get equally many; false: repeat some"),
    BOOL("data.drop_last_batch", data.drop_last_batch, JOB, WARNED, "false",
         "drop an epoch's last batch if it is short, as DataLoader's drop_last does"),
    SEED("data.seed", data.seed, "0", "seed of the sampler"),
    DOUBLE("data.scale", data.scale, JOB, WARNED, 0, 1e9, "1/255",
           "factor for data of type uint8"),
    DOUBLES("data.normalize", data.normalize, JOB, WARNED, -1e9, 1e9, "[]",
            "the channels' means, then their standard deviations: [0.1307, 0.3081]"),
    INTS("data.resize", data.resize, JOB, WARNED, 1, 65536, "[]",
         "[H, W]: resize images to it (bilinear) before the crop; image_folder: with "
         "antialiasing, and one number is the shorter side's"),
    INTS("data.crop", data.crop, JOB, WARNED, 1, 65500, "[]",
         "image_folder: take the middle of this size, [H, W] or one number for both; not "
         "given: the size of model.input"),
    DOUBLES("data.crop_scale", data.crop_scale, JOB, WARNED, 0, 1, "[]",
            "image_folder, in training instead of data.resize: take a random part of the "
            "picture, of [least, most] of its area, as RandomResizedCrop does: [0.08, 1]"),
    DOUBLES("data.crop_ratio", data.crop_ratio, JOB, WARNED, 0, 1e3, "[3/4, 4/3]",
            "data.crop_scale: the part's [least, most] width / height"),
    INT("data.crop_padding", data.crop_padding, JOB, WARNED, 0, 4096, "0",
        "pad images by this many pixels and crop the input's size at random; 0: do not"),
    BOOL("data.flip", data.flip, JOB, WARNED, "false", "random horizontal flip in training"),
    DOUBLES("data.color_jitter", data.color_jitter, JOB, WARNED, 0, 100, "[]",
            "image_folder, in training: random changes of up to [brightness, contrast, "
            "saturation, hue], as ColorJitter's: [0.4, 0.4, 0.4, 0.1]"),
    INTS("data.rand_augment", data.rand_augment, JOB, WARNED, 0, 30, "[]",
         "image_folder, in training: [operations, magnitude], as RandAugment's: [2, 9]; up to 16 "
         "operations, magnitudes 0 to 30"),
    DOUBLE("data.mixup", data.mixup, JOB, WARNED, 0, 1e6, "0",
           "cross_entropy, in training: mix each batch with itself, as v2.MixUp of this alpha does: "
           "0.2; 0: do not"),
    INT("data.prefetch", data.prefetch, LOCAL, FREE, 1, 64, "2", "batches that a worker prepares in advance"),
    INT("data.threads", data.threads, LOCAL, FREE, 0, 256, "0",
        "threads of a worker that prepare batches; 0: for image_folder as many as "
        "train.threads, up to 8, else one"),
    INT("data.samples", data.samples, JOB, WARNED, 1, MANY, "8192",
        "synthetic, synthetic_clicks: training samples"),
    INT("data.test_samples", data.test_samples, JOB, WARNED, 0, MANY, "2048",
        "synthetic, synthetic_clicks: test samples"),
    DOUBLE("data.label_noise", data.label_noise, JOB, WARNED, 0, 0.99, "0",
           "synthetic: share of the samples whose label is drawn anew, in both sets: so the "
           "loss has a limit above 0"),

    WORD("optimizer.name", optimizer.name, JOB, REFUSED, ps_optimizer_words, "sgd",
         "the optimizer, with PyTorch's formulas and defaults; sum, mean: none, a program "
         "that uses libpstrain gets the workers' gradients added up"),
    DOUBLE("optimizer.lr", optimizer.lr, JOB, WARNED, 0, 1e9, "0.001",
           "learning rate; the default of rmsprop and adagrad is 0.01, that of lion 0.0001"),
    DOUBLE("optimizer.momentum", optimizer.momentum, JOB, WARNED, 0, 1, "0",
           "sgd, rmsprop: the momentum"),
    DOUBLE("optimizer.dampening", optimizer.dampening, JOB, WARNED, 0, 1, "0",
           "sgd: the dampening of the momentum"),
    BOOL("optimizer.nesterov", optimizer.nesterov, JOB, WARNED, "false",
         "sgd: Nesterov momentum; needs a momentum and no dampening"),
    DOUBLES("optimizer.betas", optimizer.betas, JOB, WARNED, 0, 1, "[0.9, 0.999]",
            "adam, adamw, lamb, lion: decay of the moments, each below 1; lion's default is [0.9, "
            "0.99]"),
    DOUBLE("optimizer.alpha", optimizer.alpha, JOB, WARNED, 0, 1, "0.99",
           "rmsprop: decay of the mean square, below 1"),
    BOOL("optimizer.centered", optimizer.centered, JOB, REFUSED, "false",
         "rmsprop: divide by an estimate of the standard deviation"),
    DOUBLE("optimizer.eps", optimizer.eps, JOB, WARNED, 0, 1e9, "1e-8",
           "adam, adamw, lamb, rmsprop, adagrad: added to the denominator; adagrad's default is 1e-10, "
           "lamb's 1e-6"),
    DOUBLE("optimizer.lr_decay", optimizer.lr_decay, JOB, WARNED, 0, 1e9, "0",
           "adagrad: the learning rate of step t, from 0, is divided by 1 + t * lr_decay"),
    DOUBLE("optimizer.initial_accumulator_value", optimizer.initial_accumulator, JOB, WARNED, 0, 1e9, "0",
           "adagrad: what the sums of squares begin with"),
    DOUBLE("optimizer.weight_decay", optimizer.weight_decay, JOB, WARNED, 0, 1e9, "0",
           "the weight decay; the default of adamw and lamb is 0.01; adamw and lion decay the weights, "
           "lamb adds it to the update, the others to the gradient"),
    GROUPS("optimizer.groups", optimizer.groups, JOB, WARNED, "[]",
           "parameters with an lr or weight_decay of their own: [{match: ['*.bias'], weight_decay: "
           "0}, {match: [conv*], lr: 0.01}]; the first match counts"),
    BOOL("optimizer.decay_bias_norm", optimizer.decay_bias_norm, JOB, WARNED, "true",
         "false: no weight decay on biases and normalisation layers"),
    DOUBLE("optimizer.clip_norm", optimizer.clip_norm, JOB, WARNED, 0, 1e30, "0",
           "clip the whole gradient to this norm; 0: do not"),
    INT("optimizer.pytorch", optimizer.pytorch, JOB, WARNED, 1, 2, "2",
        "adam, adamw, rmsprop: round the mean gradient as PyTorch 2 does (lerp), or as PyTorch 1"),

    WORD("schedule.name", schedule.name, JOB, WARNED, ps_schedule_words, "constant",
         "how the learning rate changes from step to step"),
    INT("schedule.warmup", schedule.warmup, JOB, WARNED, 0, MANY, "0",
        "optimizer steps of linear warm-up"),
    DOUBLE("schedule.warmup_start", schedule.warmup_start, JOB, WARNED, 0, 1, "0",
           "factor of the learning rate at step 0 of the warm-up"),
    INT("schedule.step_size", schedule.step_size, JOB, WARNED, 1, MANY, "1000",
        "step: multiply by gamma after every this many optimizer steps"),
    DOUBLE("schedule.gamma", schedule.gamma, JOB, WARNED, 0, 1e9, "0.1", "step: the factor of the learning rate"),
    INT("schedule.total", schedule.total, JOB, WARNED, 0, MANY, "0",
        "cosine, linear, polynomial, onecycle: optimizer steps until the last learning rate; 0: "
        "the whole job"),
    DOUBLE("schedule.min_lr", schedule.min_lr, JOB, WARNED, 0, 1e9, "0",
           "cosine, cosine_restarts, linear, polynomial, plateau: the smallest learning rate"),
    INT("schedule.t_0", schedule.t_0, JOB, WARNED, 1, MANY, "1000",
        "cosine_restarts: optimizer steps until the first restart"),
    INT("schedule.t_mult", schedule.t_mult, JOB, WARNED, 1, 1 << 20, "1",
        "cosine_restarts: each period is this many times as long as the one before"),
    DOUBLE("schedule.power", schedule.power, JOB, WARNED, 0, 1e6, "1", "polynomial: the power"),
    DOUBLE("schedule.pct_start", schedule.pct_start, JOB, WARNED, 0, 1, "0.3",
           "onecycle: the part of the steps in which the learning rate rises to optimizer.lr"),
    DOUBLE("schedule.div_factor", schedule.div_factor, JOB, WARNED, 1e-9, 1e30, "25",
           "onecycle: the first learning rate is optimizer.lr divided by this"),
    DOUBLE("schedule.final_div_factor", schedule.final_div_factor, JOB, WARNED, 1e-9, 1e30, "10000",
           "onecycle: the last learning rate is the first divided by this"),
    WORD("schedule.anneal", schedule.anneal, JOB, WARNED, ps_anneal_words, "cos",
         "onecycle: the shape of the rise and the fall"),
    BOOL("schedule.three_phase", schedule.three_phase, JOB, WARNED, "false",
         "onecycle: after the rise, fall to the first learning rate in as many steps, then to the "
         "last"),
    WORD("schedule.metric", schedule.metric, JOB, REFUSED, ps_plateau_words, "loss",
         "plateau: which of the test split's results has to get better"),
    DOUBLE("schedule.factor", schedule.factor, JOB, WARNED, 0, 1, "0.1",
           "plateau: the factor of the learning rate, below 1"),
    INT("schedule.patience", schedule.patience, JOB, WARNED, 0, MANY, "10",
        "plateau: evaluations in a row without a better one that change nothing yet"),
    DOUBLE("schedule.threshold", schedule.threshold, JOB, WARNED, 0, 1e9, "1e-4",
           "plateau: better is a loss below best * (1 - this), an accuracy above best * (1 + this)"),
    INT("schedule.cooldown", schedule.cooldown, JOB, WARNED, 0, MANY, "0",
        "plateau: evaluations after a fall that do not count"),

    WORD("loss_scale.use", loss_scale.use, JOB, REFUSED, ps_switch_words, "auto",
         "scale the loss, and skip steps that overflow; auto: with train.precision fp16"),
    DOUBLE("loss_scale.init", loss_scale.init, JOB, WARNED, 0, 3e38, "65536",
           "the first scale; these are torch.amp.GradScaler's defaults"),
    DOUBLE("loss_scale.growth", loss_scale.growth, JOB, WARNED, 1, 1e9, "2",
           "multiplies the scale after loss_scale.interval finite steps in a row"),
    DOUBLE("loss_scale.backoff", loss_scale.backoff, JOB, WARNED, 0, 1, "0.5",
           "multiplies the scale after a skipped step"),
    INT("loss_scale.interval", loss_scale.interval, JOB, WARNED, 1, MANY, "2000",
        "finite steps in a row after which the scale grows"),

    WORD("exchange.name", exchange.name, JOB, WARNED, ps_exchange_words, "ps",
         "how gradients become new weights; allreduce: nccl on GPUs, else gloo"),
    BYTES("exchange.chunk", exchange.chunk, JOB, FREE, 0, "auto",
          "bytes of a chunk; auto: a size for links, or for one host (MASTER_ADDR 127.0.0.1)"),
    WORD("exchange.codec", exchange.codec, JOB, WARNED, ps_codec_words, "none",
         "with servers: compression of gradients and of the weights' changes"),
    BYTES("exchange.codec_min", exchange.codec_min, JOB, WARNED, 0, "4096",
          "tensors of fewer bytes travel without compression"),
    DOUBLE("exchange.topk", exchange.topk, JOB, WARNED, 1e-9, 1, "0.125",
           "topk: share of the elements that it sends"),
    INT("exchange.codec_warmup", exchange.codec_warmup, JOB, WARNED, PS_CONFIG_AUTO, MANY, "auto",
        "int4, onebit, topk: this many first steps use int8 instead; auto (or -1): 32, with onebit "
        "at most an eighth of the job, with int4 0"),
    INT("exchange.codec_cooldown", exchange.codec_cooldown, JOB, WARNED, PS_CONFIG_AUTO, MANY, "auto",
        "int4, onebit, topk: this many last steps use int8, and send what has been kept back; auto "
        "(or -1): 16, with onebit at most an eighth of the job, with int4 0"),
    WORD("exchange.shm", exchange.shm, LOCAL, FREE, ps_switch_words, "auto",
         "shared memory between processes of one host; on: fail if it cannot be used"),
    BYTES("exchange.credit", exchange.credit, JOB, FREE, 0, "auto",
          "bytes that a worker may have on the way to a shard"),
    BYTES("exchange.bucket", exchange.bucket, JOB, FREE, 1, "25MiB",
          "bytes of a bucket in all-reduce"),
    INT("exchange.levels", exchange.levels, JOB, WARNED, 1, 2, "1",
        "2: workers of one host are summed there first, and cross the network once per host"),
    WORD("exchange.nan", exchange.nan, JOB, WARNED, ps_nan_words, "error",
         "a gradient with a NaN or an infinity: error ends the job, allow applies it"),

    INT("server.shards", server.shards, JOB, FREE, 0, 256, "auto",
        "shard threads per server process; auto: on one host (MASTER_ADDR 127.0.0.1) one for "
        "each 8 MiB (by psrun with train.device cuda each MiB), as far as the cores "
        "suffice, else 1"),
    DOUBLES("server.share", server.share, JOB, FREE, 1e-6, 1e6, "[]",
            "a number per server: their parts of the parameters are in this ratio; empty: "
            "equal parts"),
    INT("server.readers", server.readers, LOCAL, FREE, 0, 4096, "64",
        "processes that may read rows of embedding tables at a time (pstrain.rows); one more "
        "gets an error"),
    STRING("server.rows_disk", server.rows_disk, LOCAL, FREE, "",
           "folder on each server's disk for rows of embedding tables beyond "
           "server.rows_memory; not given: all rows are in memory"),
    BYTES("server.rows_memory", server.rows_memory, LOCAL, FREE, 0, "0",
          "bytes of rows that a server has in memory, with server.rows_disk; their index is "
          "in memory, too"),
    STRING("server.rows_log", server.rows_log, LOCAL, FREE, "",
           "rows.policy asp: folder on each server's disk for the order in which its threads "
           "took the workers, rows-THREAD.log; not given: none is written"),
    STRING("server.rows_replay", server.rows_replay, LOCAL, FREE, "",
           "rows.policy asp: folder with a job's server.rows_log; this job repeats its order, "
           "and so its bits"),
    WORD("sync.policy", sync.policy, JOB, WARNED, ps_policy_words, "bsp",
         "when workers synchronise; bsp: in every step, a shard updates its weights once it has "
         "every worker's gradient; backup: a step does not wait for the last sync.backup; ssp: "
         "workers are at most sync.staleness steps apart; asp: never within an epoch; local: "
         "every sync.local_steps steps"),
    INT("sync.backup", sync.backup, JOB, WARNED, 1, PS_MAX_RANKS - 1, "1",
        "backup: gradients that a step does not wait for"),
    WORD("sync.late", sync.late, JOB, WARNED, ps_late_words, "drop",
         "backup: what happens to a gradient that comes too late for its step; add: it counts in "
         "the next one"),
    INT("sync.grace_ms", sync.grace_ms, JOB, WARNED, 0, LONG_MS, "0",
        "backup, and local with sync.quorum: once enough is in, a step or round waits this long for "
        "the others"),
    INT("sync.staleness", sync.staleness, JOB, WARNED, 0, MANY, "2",
        "ssp: steps by which a worker may be ahead of the slowest one; 0 is bsp"),
    WORD("sync.correction", sync.correction, JOB, WARNED, ps_correction_words, "none",
         "backup with add, ssp, asp; lr: the learning rate of a gradient that is t > 1 versions "
         "old is divided by t (for sgd); delay: a gradient g becomes g + sync.delay_strength * g * "
         "g * (how far the weights have moved since it was computed)"),
    DOUBLE("sync.delay_strength", sync.delay_strength, JOB, WARNED, 0, 1e6, "0.04",
         "sync.correction delay: its factor"),
    STRING("sync.replay", sync.replay, LOCAL, FREE, "",
           "backup, ssp, asp, local with sync.quorum: a run's policy.log, read by worker 0; the job "
           "repeats its decisions (--replay)"),
    INT("sync.local_steps", sync.local_steps, JOB, WARNED, 1, MANY, "8",
        "local: steps that a worker makes by itself; then the mean change goes to the outer "
        "optimizer"),
    INT("sync.local_after", sync.local_after, JOB, WARNED, 0, MANY, "0",
        "local: synchronise each of this many first steps (post-local SGD)"),
    INT("sync.fragments", sync.fragments, JOB, REFUSED, 1, PS_MAX_FRAGMENTS, "1",
        "local: equal parts of the model that are synchronised in turn, each every "
        "sync.local_steps steps (Streaming DiLoCo)"),
    INT("sync.overlap", sync.overlap, JOB, WARNED, 0, MANY, "0",
        "local: steps that a worker makes while a fragment is synchronised"),
    DOUBLE("sync.mixing", sync.mixing, JOB, WARNED, 0, 1, "0.5",
           "local with sync.overlap: the part of its own weights that a worker keeps when the "
           "result comes, as in Streaming DiLoCo; 0: it takes the result"),
    INT("sync.quorum", sync.quorum, JOB, WARNED, 0, PS_MAX_RANKS, "0",
        "local: changes of this many workers make a round; those that come later count in the next "
        "one; 0: all workers'"),
    BOOL("sync.steps_by_speed", sync.steps_by_speed, JOB, WARNED, "false",
         "local with sync.quorum: after the first steps and after each epoch a worker gets fewer than "
         "sync.local_steps steps for a round if others were faster, so that all need the same time"),
    WORD("sync.outer", sync.outer, JOB, REFUSED, ps_optimizer_words, "sgd",
         "local: the outer optimizer, whose gradient is the mean change: sgd, adam or adamw"),
    DOUBLE("sync.outer_lr", sync.outer_lr, JOB, WARNED, 0, 1e9, "1",
           "local: its learning rate; 1 without momentum: the workers' weights are averaged"),
    DOUBLE("sync.outer_momentum", sync.outer_momentum, JOB, WARNED, 0, 1, "0",
           "local: its momentum, for sgd; DiLoCo: 0.9 with sync.outer_lr 0.7"),
    BOOL("sync.outer_nesterov", sync.outer_nesterov, JOB, WARNED, "false",
         "local: Nesterov momentum, for sgd, as in DiLoCo"),

    STRING("net.host", net.host, LOCAL, FREE, "",
           "a name for a part of a machine, as one of its NUMA nodes: processes with other "
           "names count as on other hosts"),
    STRING("net.interface", net.interface, LOCAL, FREE, "",
           "network interface, or a prefix (eth*); not given: that of the route to the "
           "coordinator"),
    INT("net.join_timeout_ms", net.join_timeout_ms, LOCAL, FREE, 1, LONG_MS, "60000",
        "how long to wait for all members to join"),
    INT("net.heartbeat_ms", net.heartbeat_ms, LOCAL, FREE, 1, LONG_MS, "500",
        "time between heartbeats"),
    INT("net.dead_after_ms", net.dead_after_ms, LOCAL, FREE, 1, LONG_MS, "10000",
        "a member that sends no heartbeat for this long is dead"),
    INT("net.step_timeout_ms", net.step_timeout_ms, LOCAL, FREE, 1, LONG_MS, "60000",
        "an exchange without progress for this long is an error"),
    INT("net.io_threads", net.io_threads, LOCAL, FREE, 1, 64, "1", "I/O threads of ZeroMQ"),
    STRING("net.curve", net.curve, LOCAL, FREE, "",
           "folder of the job's keys (--curve); not given: no encryption"),
    BOOL("net.insecure", net.insecure, LOCAL, FREE, "false",
         "let what is not encrypted leave this host (--insecure)"),

    INT("recovery.rejoins", recovery.rejoins, LOCAL, FREE, 0, MANY, "0",
        "how often this process joins the job again after another process has failed; the "
        "job goes on from its newest checkpoint. 0: it ends, and the job with it"),
    DOUBLE("recovery.share", recovery.share, LOCAL, FREE, 0, 0.5, "0.01",
           "share of the time for checkpoints that are kept in the memory of worker 0 and "
           "of a second worker, if recovery.rejoins is above 0: the larger, the fewer steps "
           "a failure costs"),
    INT("recovery.wait_ms", recovery.wait_ms, LOCAL, FREE, 0, LONG_MS, "10000",
        "where job.workers is a range: how long a worker that has died is waited for before "
        "the others go on with fewer"),

    BOOL("rows.buddy", rows.buddy, JOB, FREE, "false",
         "with embedding tables: each server's rows are in the memory of the next server, too, so "
         "that its death costs no more steps than a worker's; the servers need twice the memory"),

    WORD("rows.policy", rows.policy, JOB, WARNED, ps_rows_policy_words, "bsp",
         "with embedding tables; bsp: rows are stepped with all workers' gradients; asp: with each "
         "worker's when they arrive, and a lookup does not wait for other workers, which may be a "
         "step behind"),

    INT("metrics.port", metrics.port, LOCAL, FREE, 0, 65535, "0",
        "port of the coordinator's process for the page and /metrics; the other processes "
        "take free ports, which the page lists. 0: none"),
    STRING("metrics.bind", metrics.bind, LOCAL, FREE, "127.0.0.1",
           "address that these ports are bound to; everybody who can reach it can read them"),
    BOOL("trace.straggler", trace.straggler, LOCAL, FREE, "true",
         "find out which worker, server or link all others wait for, and name it; on all "
         "members alike"),
    INT("trace.first", trace.first, LOCAL, FREE, 0, MANY, "0",
        "train.trace: the first optimizer step that is recorded, counted from 0"),
    INT("trace.steps", trace.steps, LOCAL, FREE, 0, MANY, "0",
        "train.trace: how many steps are recorded; 0: all from the first on"),
    BYTES("trace.limit", trace.limit, LOCAL, FREE, 4096, "16MiB",
        "train.trace: bytes that a process may write; then it records no more"),
};
// clang-format on
const int ps_config_n_keys = sizeof ps_config_keys / sizeof *ps_config_keys;

const ps_config_key *ps_config_key_find(const char *path)
{
    for (int i = 0; i < ps_config_n_keys; i++)
        if (strcmp(ps_config_keys[i].path, path) == 0) return &ps_config_keys[i];
    return NULL;
}

const char *ps_key_type_text(ps_key_type type)
{
    static const char *const texts[] = {
        [PS_KEY_BOOL] = "true or false",
        [PS_KEY_INT] = "a whole number",
        [PS_KEY_RANGE] = "a whole number, or a range of them such as 2..8",
        [PS_KEY_UINT64] = "a whole number, at least 0",
        [PS_KEY_DOUBLE] = "a number",
        [PS_KEY_BYTES] = "a number of bytes (such as 65536, 64K, 1MiB)",
        [PS_KEY_STRING] = "a text",
        [PS_KEY_WORD] = "a word",
        [PS_KEY_DEVICE] = "a word",
        [PS_KEY_INT_LIST] = "whole numbers",
        [PS_KEY_DOUBLE_LIST] = "numbers",
        [PS_KEY_NAMES] = "a name, or a list of names",
        [PS_KEY_PATTERNS] = "patterns of names",
        [PS_KEY_GROUPS] = "a list of groups",
    };
    return texts[type];
}

const char *ps_key_resume_text(ps_key_resume resume)
{
    static const char *const texts[] = {[PS_RESUME_FREE] = "free",
                                        [PS_RESUME_WARNED] = "warned",
                                        [PS_RESUME_REFUSED] = "refused"};
    return texts[resume];
}

void ps_config_key_range(const ps_config_key *key, char *out, size_t bytes)
{
    out[0] = '\0';
    if (key->type == PS_KEY_WORD)
        ps_word_list(key->words, out, bytes);
    else if (key->type == PS_KEY_DEVICE)
        snprintf(out, bytes, "auto | cpu | cuda | cuda:N");
    else if (key->min == key->max)
        return;
    else if (key->max < 1e9)
        snprintf(out, bytes, "%.10g .. %.10g", key->min, key->max);
    else if (key->min > -1e9)
        snprintf(out, bytes, "at least %.10g", key->min);
}
