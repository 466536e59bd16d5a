// Reads our messages by the CloudEvents SDK for Go, prints what it read, a JSON object a line, and writes an event as
// JSON in binary and one in structured mode: `interop BROKER COUNT OUT TOPIC...`
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/cloudevents/sdk-go/protocol/kafka_sarama/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
)

func main() {
	broker, out := os.Args[1], os.Args[3]
	count, err := strconv.Atoi(os.Args[2])
	must(err)
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Producer.Return.Successes = true
	client, err := sarama.NewClient([]string{broker}, config)
	must(err)
	defer client.Close()
	read(client, count, os.Args[4:])
	write(client, out)
}

func read(client sarama.Client, count int, topics []string) {
	consumer, err := sarama.NewConsumerFromClient(client)
	must(err)
	messages := make(chan *sarama.ConsumerMessage)
	for _, topic := range topics {
		partitions, err := client.Partitions(topic)
		must(err)
		for _, partition := range partitions {
			part, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
			must(err)
			go func() {
				for message := range part.Messages() {
					messages <- message
				}
			}()
		}
	}
	for ; count > 0; count-- {
		message := <-messages
		read, err := binding.ToEvent(context.Background(), kafka_sarama.NewMessageFromConsumerMessage(message))
		must(err)
		must(read.Validate())
		report := map[string]any{
			"topic": message.Topic, "key": string(message.Key), "id": read.ID(), "source": read.Source(),
			"type": read.Type(), "subject": read.Subject(), "time": read.Time().Format(time.RFC3339Nano),
			"dataschema": read.DataSchema(), "datacontenttype": read.DataContentType(),
			"data": base64.StdEncoding.EncodeToString(read.Data()),
		}
		for name, value := range read.Extensions() {
			report[name] = value
		}
		line, err := json.Marshal(report)
		must(err)
		fmt.Println(string(line))
	}
}

func write(client sarama.Client, topic string) {
	producer, err := sarama.NewSyncProducerFromClient(client)
	must(err)
	for saga, mode := range map[string]func(context.Context) context.Context{
		"go-json": binding.WithForceBinary, "go-structured": binding.WithForceStructured,
	} {
		made := event.New()
		made.SetID(saga + "-1")
		made.SetSource("/shops/go")
		made.SetType("org.example.Sold")
		made.SetSubject(saga)
		made.SetTime(time.Date(2026, 11, 21, 14, 6, 40, 500_000_000, time.UTC))
		made.SetExtension("attempt", 3)
		must(made.SetData("application/json", map[string]any{
			"order_id": saga, "total": "9.80", "at": "2026-11-21T14:06:40.500Z", "note": nil, "kind": "GIFT",
			"lines": []any{map[string]any{"sku": "tea", "count": 2}}, "weights": map[string]any{"tea": 0.25},
		}))
		message := &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(saga)}
		must(kafka_sarama.WriteProducerMessage(mode(context.Background()), binding.ToMessage(&made), message))
		_, _, err := producer.SendMessage(message)
		must(err)
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
