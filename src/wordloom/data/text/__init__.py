"""Running text: documents, corpora, sentences, Wikipedia, Brown."""
