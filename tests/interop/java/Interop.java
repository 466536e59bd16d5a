// Reads our messages by Java's CloudEvents SDK and Java's Avro, prints what it read, a JSON object a line, and writes
// events in each form that these write: `Interop BROKER REGISTRY SCHEMA COUNT OUT SCHEMA_ID TOPIC...`
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.cloudevents.CloudEvent;
import io.cloudevents.core.builder.CloudEventBuilder;
import io.cloudevents.core.data.BytesCloudEventData;
import io.cloudevents.core.message.Encoding;
import io.cloudevents.jackson.JsonCloudEventData;
import io.cloudevents.jackson.JsonFormat;
import io.cloudevents.kafka.CloudEventDeserializer;
import io.cloudevents.kafka.CloudEventSerializer;
import java.io.ByteArrayOutputStream;
import java.math.BigDecimal;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Conversions;
import org.apache.avro.Schema;
import org.apache.avro.data.TimeConversions;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.avro.message.BinaryMessageDecoder;
import org.apache.avro.message.BinaryMessageEncoder;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Interop {
  static final ObjectMapper JSON = new ObjectMapper();
  static final GenericData DATA = new GenericData();
  static final Map<Integer, Schema> KNOWN = new HashMap<>();

  public static void main(String[] given) throws Exception {
    DATA.addLogicalTypeConversion(new Conversions.DecimalConversion());
    DATA.addLogicalTypeConversion(new TimeConversions.TimestampMillisConversion());
    Schema schema = new Schema.Parser().parse(Files.readString(Path.of(given[2])));
    read(given[0], given[1], schema, Integer.parseInt(given[3]), List.of(given).subList(6, given.length));
    write(given[0], schema, given[4], Integer.parseInt(given[5]));
  }

  static void read(String broker, String registry, Schema schema, int count, List<String> topics) throws Exception {
    Map<String, Object> settings = Map.of("bootstrap.servers", broker, "auto.offset.reset", "earliest");
    BinaryMessageDecoder<GenericRecord> single = new BinaryMessageDecoder<>(DATA, schema);
    try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new CloudEventDeserializer())) {
      List<TopicPartition> partitions = new ArrayList<>();
      for (String topic : topics)
        consumer.partitionsFor(topic).forEach(each -> partitions.add(new TopicPartition(topic, each.partition())));
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      for (int seen = 0; seen < count; ) {
        for (ConsumerRecord<String, CloudEvent> record : consumer.poll(Duration.ofSeconds(1))) {
          CloudEvent event = record.value();
          byte[] data = event.getData().toBytes();
          GenericRecord fields = data[0] == 0 ? registered(registry, schema, data) : single.decode(data);
          ObjectNode report = JSON.createObjectNode();
          report.put("topic", record.topic()).put("key", record.key()).put("first", data[0]);
          for (String name : event.getAttributeNames()) report.put(name, event.getAttribute(name).toString());
          for (String name : event.getExtensionNames()) report.put(name, event.getExtension(name).toString());
          ObjectNode values = report.putObject("fields");
          for (Schema.Field field : schema.getFields()) values.put(field.name(), String.valueOf(fields.get(field.name())));
          System.out.println(JSON.writeValueAsString(report));
          seen++;
        }
      }
    }
  }

  static GenericRecord registered(String registry, Schema reader, byte[] data) throws Exception {
    int id = ByteBuffer.wrap(data, 1, 4).getInt();
    if (!KNOWN.containsKey(id)) {
      HttpRequest asked = HttpRequest.newBuilder(URI.create(registry + "/schemas/ids/" + id)).build();
      String answer = HttpClient.newHttpClient().send(asked, HttpResponse.BodyHandlers.ofString()).body();
      KNOWN.put(id, new Schema.Parser().parse(JSON.readTree(answer).get("schema").asText()));
    }
    return new GenericDatumReader<GenericRecord>(KNOWN.get(id), reader, DATA)
        .read(null, DecoderFactory.get().binaryDecoder(data, 5, data.length - 5, null));
  }

  static void write(String broker, Schema schema, String topic, int id) throws Exception {
    Map<String, Object> binary = Map.of("bootstrap.servers", broker, "acks", "all");
    Map<String, Object> structured = new HashMap<>(binary);
    structured.put(CloudEventSerializer.ENCODING_CONFIG, Encoding.STRUCTURED);
    structured.put(CloudEventSerializer.EVENT_FORMAT_CONFIG, JsonFormat.CONTENT_TYPE);
    try (var producer = producer(binary)) {
      byte[] single = new byte[0];
      ByteBuffer encoded = new BinaryMessageEncoder<GenericRecord>(DATA, schema).encode(record(schema, "java-single"));
      single = new byte[encoded.remaining()];
      encoded.get(single);
      send(producer, topic, event("java-single", "application/avro").withData(BytesCloudEventData.wrap(single)).build());
      ByteArrayOutputStream framed = new ByteArrayOutputStream();
      framed.write(0);
      framed.write(ByteBuffer.allocate(4).putInt(id).array());
      BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(framed, null);
      new GenericDatumWriter<GenericRecord>(schema, DATA).write(record(schema, "java-registry"), encoder);
      encoder.flush();
      send(
          producer,
          topic,
          event("java-registry", "application/avro").withData(BytesCloudEventData.wrap(framed.toByteArray())).build());
      byte[] text = JSON.writeValueAsBytes(json("java-json"));
      send(producer, topic, event("java-json", "application/json").withData(BytesCloudEventData.wrap(text)).build());
    }
    try (var producer = new KafkaProducer<>(structured, new StringSerializer(), structuredBy(structured))) {
      JsonCloudEventData data = JsonCloudEventData.wrap(json("java-structured"));
      send(producer, topic, event("java-structured", "application/json").withData(data).build());
    }
  }

  static KafkaProducer<String, CloudEvent> producer(Map<String, Object> settings) {
    return new KafkaProducer<>(settings, new StringSerializer(), structuredBy(settings));
  }

  static CloudEventSerializer structuredBy(Map<String, Object> settings) {
    CloudEventSerializer serializer = new CloudEventSerializer();
    serializer.configure(settings, false);
    return serializer;
  }

  static void send(KafkaProducer<String, CloudEvent> producer, String topic, CloudEvent event) throws Exception {
    producer.send(new ProducerRecord<>(topic, event.getSubject(), event)).get();
  }

  static CloudEventBuilder event(String saga, String contentType) {
    return CloudEventBuilder.v1()
        .withId(saga + "-1")
        .withSource(URI.create("/shops/java"))
        .withType("org.example.Sold")
        .withSubject(saga)
        .withTime(OffsetDateTime.parse("2026-11-21T15:06:40.5+01:00"))
        .withExtension("attempt", 3)
        .withDataContentType(contentType);
  }

  static GenericRecord record(Schema schema, String saga) {
    GenericData.Record made = new GenericData.Record(schema);
    made.put("order_id", saga);
    made.put("total", new BigDecimal("9.80"));
    made.put("at", Instant.parse("2026-11-21T14:06:40.500Z"));
    made.put("note", null);
    made.put("kind", new GenericData.EnumSymbol(schema.getField("kind").schema(), "GIFT"));
    Schema line = schema.getField("lines").schema().getElementType();
    GenericData.Record one = new GenericData.Record(line);
    one.put("sku", "tea");
    one.put("count", 2);
    made.put("lines", List.of(one));
    made.put("weights", Map.of("tea", 0.25));
    return made;
  }

  static ObjectNode json(String saga) {
    ObjectNode made = JSON.createObjectNode();
    made.put("order_id", saga).put("total", "9.80").put("at", "2026-11-21T14:06:40.500Z").putNull("note");
    made.put("kind", "GIFT");
    made.putArray("lines").addObject().put("sku", "tea").put("count", 2);
    made.putObject("weights").put("tea", 0.25);
    return made;
  }
}
