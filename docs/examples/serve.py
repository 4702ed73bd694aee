"""Serves a trained model over HTTP, with requests batched: MODEL=mine uvicorn --app-dir docs/examples serve:app"""

import asyncio
import os
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from qacg_models import AspectSentiment
from qacg_models.errors import InputError
from qacg_models.sentiment.predictor import examples_of

MOST_TEXTS, WAIT = 64, 0.005  # maximum number of texts in a batch; seconds of waiting for the texts of a batch


class Request(BaseModel):
    text: str = Field(min_length=1, max_length=20_000)


async def worker(model, queue):
    """Collects requests for WAIT seconds, then predicts them in one batch, in a thread."""
    while True:
        batch = [await queue.get()]
        await asyncio.sleep(WAIT)
        while not queue.empty() and len(batch) < MOST_TEXTS:
            batch.append(queue.get_nowait())
        try:
            found = await asyncio.to_thread(model, [text for text, _ in batch])
        except Exception as error:
            found = [error] * len(batch)
        for (_, future), answers in zip(batch, found, strict=True):
            if not future.done():  # if a client disconnects, its future is cancelled
                future.set_result(answers)


@asynccontextmanager
async def lifespan(app):
    model = AspectSentiment.from_pretrained(os.environ["MODEL"])  # the model is loaded once, at the start
    app.state.model, app.state.queue = model, asyncio.Queue()
    task = asyncio.create_task(worker(model, app.state.queue))
    yield
    task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
async def predict(request: Request) -> list[dict]:
    try:
        # Checked before batching, so that an invalid text fails alone.
        examples_of(app.state.model.trained, [request.text])
    except InputError as error:
        raise HTTPException(422, str(error)) from error
    future = asyncio.get_running_loop().create_future()
    await app.state.queue.put((request.text, future))
    answers = await future
    if isinstance(answers, Exception):
        raise HTTPException(500, "prediction failed") from answers
    return [answer.to_json() for answer in answers]
