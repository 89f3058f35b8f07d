"""Model providers: one class for each kind of endpoint that serves models.

    openai              OpenAIProvider             api.openai.com, chat completions
    openai_compatible   OpenAICompatibleProvider   any other chat-completions endpoint, including local servers without a key
                        AzureOpenAIProvider        a deployment on Azure
    openai_responses    OpenAIResponsesProvider    OpenAI's Responses API
    anthropic           AnthropicProvider          Anthropic's Messages API
    clouds                                         Bedrock, Vertex AI, Gemini
    wrappers                                       retries, a circuit breaker, fallbacks; `guarded` applies all of them

`base` defines the provider protocols, so that a provider can be written elsewhere; test one with
`openagentic_sdk.testing.provider_contract`. Request options besides messages and tools are in
`chat_request.RequestSettings`, time limits in `wire.timeouts`, the differences between endpoints in `quirks.Quirks`,
the features of each family of Claude models in `claude_models`, the sources of keys in `keys`, the parts of a message in
`content`, and the rule for which calls may run in `calls`.

    provider = guarded(
        OpenAICompatibleProvider(
            base_url="http://127.0.0.1:11434/v1",
            settings=RequestSettings(temperature=0.2, max_tokens=2000),
            http=HttpTransport(timeouts=Timeouts(first_byte_s=120)),
        ),
        fallback=["a-smaller-model"],
    )

The layers below: `wire.exchange` sends one request and reads its answer, `wire.http` and `wire.connect` open the sockets,
and `sse` and `openai_stream_assembler` turn bytes into events and calls without any I/O.
"""
