# SPDX-License-Identifier: Apache-2.0
"""Elastic training of which one rank is killed: the others continue from the last commit."""

import json
import os
import signal
import sys

import p4reduce.horovod as hvd
import torch
from torch import nn

VICTIM, STEPS, COMMIT = int(sys.argv[1]), 12, 4

hvd.init()
BORN = hvd.rank()
torch.manual_seed(BORN)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
sampler = hvd.elastic.ElasticSampler(range(96), seed=3)
began: list[int] = []
resets: list[int] = []


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    began.append(state.step)
    while state.step < STEPS:
        if BORN == VICTIM and state.step == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        numbers = torch.tensor(list(sampler)[:2], dtype=torch.float32)
        inputs = torch.sin(numbers[:, None] * torch.arange(1.0, 5.0))
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        sampler.record_batch(state.step, 2)
        state.step += 1
        if state.step % COMMIT == 0:
            state.commit()


state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, step=0)
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
train(state)
weights = [float(one) for parameter in model.parameters() for one in parameter.flatten()]
alike = hvd.allgather_object(weights)
print(
    json.dumps(
        {
            "rank": hvd.rank(),
            "size": hvd.size(),
            "began": began,
            "resets": resets,
            "processed": sampler.processed_num,
            "alike": all(one == weights for one in alike),
        }
    ),
    flush=True,
)
hvd.shutdown()
