"""Where models are asked.

    openai              OpenAIProvider             api.openai.com, chat completions
    openai_compatible   OpenAICompatibleProvider   any other endpoint that speaks them, local servers without a key included
                        AzureOpenAIProvider        a deployment on Azure
    openai_responses    OpenAIResponsesProvider    OpenAI's Responses API
    anthropic           AnthropicProvider          Anthropic's Messages API
    clouds                                         Bedrock, Vertex AI, Gemini
    retry, breaker, fallback                       providers around a provider; `guarded` puts them in the order that works

`base` says what a provider is, so that one can be written elsewhere; `openagentic_sdk.testing.provider_contract` tests it.
What requests ask for besides messages and tools stands in `chat_request.RequestSettings`, how long to wait in
`timeouts.Timeouts`, how an endpoint differs from the others in `quirks.Quirks`, what a family of Claude models takes in
`claude_models`, where keys come from in `keys`, the parts of a message in `content`, which calls may run in `calls`.

    provider = guarded(
        OpenAICompatibleProvider(
            base_url="http://127.0.0.1:11434/v1",
            settings=RequestSettings(temperature=0.2, max_tokens=2000),
            http=HttpTransport(timeouts=Timeouts(first_byte_s=120)),
        ),
        fallback=["a-smaller-model"],
    )

Below them: `exchange` is one request and its answer, `http` and `connect` the files that open a socket, `sse` and
`openai_stream_assembler` make events and calls of bytes without any I/O.
"""
