"""What both examples need: the text and the network, initialised at random.

The text is the beginning of Charles Dickens, A Tale of Two Cities (1859), in the public domain.
"""
import torch
from transformers import GPT2Config, GPT2LMHeadModel

TEXT = """It was the best of times, it was the worst of times, it was the age of wisdom, it was the
age of foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season
of Light, it was the season of Darkness, it was the spring of hope, it was the winter of despair, we
had everything before us, we had nothing before us, we were all going direct to Heaven, we were all
going direct the other way - in short, the period was so far like the present period, that some of
its noisiest authorities insisted on its being received, for good or for evil, in the superlative
degree of comparison only. There were a king with a large jaw and a queen with a plain face, on the
throne of England; there were a king with a large jaw and a queen with a fair face, on the throne of
France. In both countries it was clearer than crystal to the lords of the State preserves of loaves
and fishes, that things in general were settled for ever. """
CONTEXT = 64  # characters


def network():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=128, vocab_size=128, n_positions=CONTEXT))


def samples():
    codes = torch.tensor(list(TEXT.encode("ascii")))
    return [{"input_ids": w, "labels": w} for w in codes.unfold(0, CONTEXT, 3)]
