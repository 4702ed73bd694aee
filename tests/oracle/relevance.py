"""The rules of layer-wise relevance, one message at a time, in the dtype of the inputs."""

import torch


def linear_rule(weight, bias, x, relevance, eps=1e-7):
    """One row x (M) and R (N) of y = W x + b: |x_m sum_n R_n W_nm / y_n|, scaled to the sum of R."""
    y = weight @ x + bias
    parts = torch.stack(
        [
            abs((x[m] + eps) * sum(relevance[n] / (y[n] + eps) * weight[n, m] for n in range(len(y))))
            for m in range(len(x))
        ]
    )
    return parts * (relevance.sum() / (parts.sum() + eps))


def attention_rule(output, value, attention, relevance, eps=1e-6):
    """One head: O (L, D), V (S, D), A (L, S), R (L, D), one message at a time."""
    (length, size), keys = output.shape, len(value)
    result = torch.zeros_like(value)
    for i in range(length):
        for d in range(size):
            e = eps if output[i, d] >= 0 else -eps
            for j in range(keys):
                share = (attention[i, j] * value[j, d] + e / (keys * size)) / (output[i, d] + e)
                result[j, d] += share * relevance[i, d]
    return result


def residual_rule(branch, residual, relevance, eps=1e-7):
    """One row: the branch's part in R of branch + residual, scaled to the sum of R."""
    parts = ((branch + eps) * relevance / (branch + residual + eps)).abs()
    return parts * (relevance.sum() / (parts.sum() + eps))
