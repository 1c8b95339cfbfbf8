"""One door to a model: `answerer.Answerer`, in this process (`embedded`) or a server (`openai`)."""
